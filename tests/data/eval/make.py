"""Likelihoods of models/pemberley-4m by transformers, for tests/unit/job/test_eval.c. Run in the root of the tree.
float32 weights and activations, float64 log-softmax. Prints protocol, scored ids, sum of negative log likelihoods."""
import json
import math
import re

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

DIR = "models/pemberley-4m"
model = LlamaForCausalLM.from_pretrained(DIR, dtype=torch.float32).eval()
tok = Tokenizer.from_file(DIR + "/tokenizer.json")
bos = tok.encode("", add_special_tokens=True).ids[:1]


def ids_of(text):
    return tok.encode(text, add_special_tokens=False).ids


@torch.inference_mode()
def nll(ids, first):
    """of ids[first:]"""
    lp = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), -1)
    return [-float(lp[i - 1, ids[i]]) for i in range(first, len(ids))]


def show(name, windows):
    v = [x for ids, first in windows for x in nll(ids, first)]
    print(name, len(v), sum(v))
    return sum(v)


raw = ids_of(open(DIR + "/eval.txt").read())
full = bos + raw
show("windows-256", [(bos + raw[i : i + 255], 1) for i in range(0, 3 * 255, 255)])
show("gptq-256", [(full[i : i + 256], 1) for i in range(0, 3 * 256, 256)])
show("llama.cpp-256", [(bos + full[i + 1 : i + 256], 129) for i in range(0, 3 * 256, 256)])
show("strided-128-64", [(full[i : i + 128], 64 if i else 1) for i in range(0, 8 * 64, 64)])

docs = [json.loads(line)["text"] for line in open("tests/data/eval/docs.jsonl")]
windows = []
for d in docs:
    t = bos + ids_of(d)
    done = 1
    while done < len(t):
        end = min(done + 64, len(t))
        begin = max(0, end - 65)
        windows.append((t[begin:end], done - begin))
        done = end
total = show("documents-64", windows)
print("per word", math.exp(total / sum(len(re.split(r"\s+", d)) for d in docs)),
      "bits per byte", total / sum(len(d.encode()) for d in docs) / math.log(2))

hits = norm = 0
everything = 0.0
for line in open("tests/data/eval/choices.jsonl"):
    q = json.loads(line)
    context = next(q[k] for k in ("query", "question", "ctx") if k in q)
    answers = q.get("choices", q.get("endings"))
    answers = answers["text"] if isinstance(answers, dict) else answers
    gold = str(next(q[k] for k in ("gold", "answerKey", "label") if k in q))
    gold = int(gold) if gold.isdigit() else "ABCD".index(gold)
    head = ids_of(context)
    ll = [-sum(nll(bos + ids_of(context + " " + a), 1 + len(head))) for a in answers]
    everything += sum(ll)
    best = lambda score: max(range(len(ll)), key=score)
    hits += best(lambda i: ll[i]) == gold
    norm += best(lambda i: ll[i] / len(answers[i])) == gold
print("choices", hits, norm, everything)
