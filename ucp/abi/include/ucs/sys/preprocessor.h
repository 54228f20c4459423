/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_SYS_PREPROCESSOR_H_
#define UCS_SYS_PREPROCESSOR_H_

/* Texts. The first one takes its argument as it is written, the second one what it expands to. */
#define UCS_PP_QUOTE(_text) #_text
#define UCS_PP_MAKE_STRING(_text) UCS_PP_QUOTE(_text)

#define UCS_PP_EXPAND(_tokens) _tokens
#define UCS_PP_TUPLE_BREAK(...) __VA_ARGS__

/* Joins what the arguments expand to. */
#define UCS_PP_TOKENPASTE(_a, _b) UCS_PP_PASTE_(_a, _b)
#define UCS_PP_PASTE_(_a, _b) _a##_b
#define UCS_PP_TOKENPASTE3(_a, _b, _c) UCS_PP_PASTE3_(_a, _b, _c)
#define UCS_PP_PASTE3_(_a, _b, _c) _a##_b##_c

/* A number that is another one each time. */
#define UCS_PP_UNIQUE_ID __COUNTER__
#define UCS_PP_APPEND_UNIQUE_ID(_name) UCS_PP_TOKENPASTE(_name, UCS_PP_UNIQUE_ID)

/* The number of arguments. */
#define UCS_PP_MAX_ARGS 21
#define UCS_PP_NUM_ARGS(...) \
    UCS_PP_ARG_22_(, ##__VA_ARGS__, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, )
#define UCS_PP_ARG_22_(_0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21, \
    _n, ...) _n

/*
 * Each argument through a macro: UCS_PP_FOREACH(M, x, a, b) is M(x, a) M(x, b), and UCS_PP_FOREACH_SEP has a comma
 * between them.
 */
#define UCS_PP_FOREACH(_macro, _arg, ...) \
    UCS_PP_TOKENPASTE3(UCS_PP_EACH_, UCS_PP_NUM_ARGS(__VA_ARGS__), _)(_macro, UCS_PP_NOTHING_, _arg, __VA_ARGS__, )
#define UCS_PP_FOREACH_SEP(_macro, _arg, ...) \
    UCS_PP_TOKENPASTE3(UCS_PP_EACH_, UCS_PP_NUM_ARGS(__VA_ARGS__), _)(_macro, UCS_PP_COMMA_, _arg, __VA_ARGS__, )
#define UCS_PP_NOTHING_()
#define UCS_PP_COMMA_() ,
#define UCS_PP_EACH_0_(_macro, _between, _arg, ...)
#define UCS_PP_EACH_1_(_macro, _between, _arg, _first, ...) _macro(_arg, _first)
#define UCS_PP_EACH_2_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_1_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_3_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_2_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_4_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_3_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_5_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_4_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_6_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_5_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_7_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_6_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_8_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_7_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_9_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_8_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_10_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_9_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_11_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_10_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_12_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_11_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_13_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_12_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_14_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_13_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_15_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_14_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_16_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_15_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_17_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_16_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_18_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_17_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_19_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_18_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_20_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_19_(_macro, _between, _arg, __VA_ARGS__)
#define UCS_PP_EACH_21_(_macro, _between, _arg, _first, ...) \
    _macro(_arg, _first) _between() UCS_PP_EACH_20_(_macro, _between, _arg, __VA_ARGS__)

/* Pairs of two lists in brackets: UCS_PP_ZIP((a, b), (1, 2)) is (a, 1), (b, 2). Up to ten. */
#define UCS_PP_ZIP(_one, _other) \
    UCS_PP_TOKENPASTE3(UCS_PP_ZIP_, UCS_PP_NUM_ARGS _one, _) \
    ((UCS_PP_TUPLE_BREAK _one, ), (UCS_PP_TUPLE_BREAK _other, ))
#define UCS_PP_FIRST_(_first, ...) _first
#define UCS_PP_REST_(_first, ...) __VA_ARGS__
#define UCS_PP_ZIP_0_(_one, _other)
#define UCS_PP_ZIP_1_(_one, _other) (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other)
#define UCS_PP_ZIP_2_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_1_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))
#define UCS_PP_ZIP_3_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_2_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))
#define UCS_PP_ZIP_4_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_3_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))
#define UCS_PP_ZIP_5_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_4_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))
#define UCS_PP_ZIP_6_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_5_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))
#define UCS_PP_ZIP_7_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_6_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))
#define UCS_PP_ZIP_8_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_7_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))
#define UCS_PP_ZIP_9_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_8_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))
#define UCS_PP_ZIP_10_(_one, _other) \
    (UCS_PP_FIRST_ _one, UCS_PP_FIRST_ _other), UCS_PP_ZIP_9_((UCS_PP_REST_ _one), (UCS_PP_REST_ _other))

/* One argument by its place. */
#define UCS_PP_TUPLE_0(_0, ...) _0
#define UCS_PP_TUPLE_1(_0, _1, ...) _1
#define UCS_PP_TUPLE_2(_0, _1, _2, ...) _2
#define UCS_PP_TUPLE_3(_0, _1, _2, _3, ...) _3
#define UCS_PP_TUPLE_4(_0, _1, _2, _3, _4, ...) _4
#define UCS_PP_TUPLE_5(_0, _1, _2, _3, _4, _5, ...) _5
#define UCS_PP_TUPLE_6(_0, _1, _2, _3, _4, _5, _6, ...) _6
#define UCS_PP_TUPLE_7(_0, _1, _2, _3, _4, _5, _6, _7, ...) _7
#define UCS_PP_TUPLE_8(_0, _1, _2, _3, _4, _5, _6, _7, _8, ...) _8
#define UCS_PP_TUPLE_9(_0, _1, _2, _3, _4, _5, _6, _7, _8, _9, ...) _9
#define UCS_PP_TUPLE_10(_0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, ...) _10

/* Numbers from 0 to below `_count`. */
#define UCS_PP_SEQ(_count) UCS_PP_TOKENPASTE3(UCS_PP_SEQ_, _count, _)
#define UCS_PP_SEQ_0_
#define UCS_PP_SEQ_1_ 0
#define UCS_PP_SEQ_2_ UCS_PP_SEQ_1_, 1
#define UCS_PP_SEQ_3_ UCS_PP_SEQ_2_, 2
#define UCS_PP_SEQ_4_ UCS_PP_SEQ_3_, 3
#define UCS_PP_SEQ_5_ UCS_PP_SEQ_4_, 4
#define UCS_PP_SEQ_6_ UCS_PP_SEQ_5_, 5
#define UCS_PP_SEQ_7_ UCS_PP_SEQ_6_, 6
#define UCS_PP_SEQ_8_ UCS_PP_SEQ_7_, 7
#define UCS_PP_SEQ_9_ UCS_PP_SEQ_8_, 8
#define UCS_PP_SEQ_10_ UCS_PP_SEQ_9_, 9
#define UCS_PP_SEQ_11_ UCS_PP_SEQ_10_, 10
#define UCS_PP_SEQ_12_ UCS_PP_SEQ_11_, 11
#define UCS_PP_SEQ_13_ UCS_PP_SEQ_12_, 12
#define UCS_PP_SEQ_14_ UCS_PP_SEQ_13_, 13
#define UCS_PP_SEQ_15_ UCS_PP_SEQ_14_, 14
#define UCS_PP_SEQ_16_ UCS_PP_SEQ_15_, 15
#define UCS_PP_SEQ_17_ UCS_PP_SEQ_16_, 16
#define UCS_PP_SEQ_18_ UCS_PP_SEQ_17_, 17
#define UCS_PP_SEQ_19_ UCS_PP_SEQ_18_, 18
#define UCS_PP_SEQ_20_ UCS_PP_SEQ_19_, 19
#define UCS_PP_SEQ_21_ UCS_PP_SEQ_20_, 20

/* Arguments of a function by their types, as arg0, arg1 and so on, and the same names for a call. */
#define UCS_FUNC_DEFINE_ARGS(...) \
    UCS_PP_FOREACH_SEP(UCS_FUNC_ARG_, _, UCS_PP_ZIP((UCS_PP_SEQ(UCS_PP_NUM_ARGS(__VA_ARGS__))), (__VA_ARGS__)))
#define UCS_FUNC_PASS_ARGS(...) \
    UCS_PP_FOREACH_SEP(UCS_FUNC_NAME_, _, UCS_PP_SEQ(UCS_PP_NUM_ARGS(__VA_ARGS__)))
#define UCS_FUNC_ARG_(_none, _pair) UCS_FUNC_ARG_OF_ _pair
#define UCS_FUNC_ARG_OF_(_index, _type) _type UCS_FUNC_NAME_(, _index)
#define UCS_FUNC_NAME_(_none, _index) UCS_PP_TOKENPASTE(arg, _index)

#endif
