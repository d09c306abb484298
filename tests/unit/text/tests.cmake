nb_test(text test_tokenizer.c)
