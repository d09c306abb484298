/* pickle_build.h - pieces of pickle streams as string literals, for the tests. */
#ifndef NB_TESTS_PICKLE_BUILD_H
#define NB_TESTS_PICKLE_BUILD_H

#define P2                     "\x80\x02"
#define G(module, name)        "c" module "\n" name "\n"
#define S(len, text)           "X" len "\0\0\0" text
#define K(n)                   "K" n
#define ODICT                  G("collections", "OrderedDict") ")R"
#define STORE(cls, key, count) "(" S("\x07", "storage") G("torch", cls) S("\x01", key) S("\x03", "cpu") count "tQ"
/* storage, offset, size, stride */
#define VIEW(store, offset, size, stride) G("torch._utils", "_rebuild_tensor_v2") "(" store offset size stride "\x89" ODICT "tR"
#define FLOATS6                           VIEW(STORE("FloatStorage", "0", K("\6")), K("\0"), K("\2") K("\3") "\x86", K("\3") K("\1") "\x86")

#endif
