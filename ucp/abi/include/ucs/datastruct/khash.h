/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
/* klib's guard: a file may have klib's header, or UCX's copy of it, too. */
#ifndef __AC_KHASH_H
#define __AC_KHASH_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Hash tables of any types of keys and values, with the names of klib's. An entry is known by its bucket, a number below
 * kh_end; each change by kh_put and kh_resize may move entries to other buckets. A file with klib's header may work on
 * the same table: members, states of buckets, hash values and steps of a search are the same.
 */
typedef uint32_t khint32_t;
typedef unsigned long khint64_t;
typedef khint32_t khint_t;
typedef khint_t khiter_t;
typedef const char *kh_cstr_t;

#ifndef kh_inline
#define kh_inline inline
#endif
#ifndef klib_unused
#define klib_unused __attribute__((unused))
#endif

/* Memory: a program may define others before it includes this. */
#ifndef kcalloc
#define kcalloc(_count, _size) calloc(_count, _size)
#endif
#ifndef kmalloc
#define kmalloc(_size) malloc(_size)
#endif
#ifndef krealloc
#define krealloc(_ptr, _size) realloc(_ptr, _size)
#endif
#ifndef kfree
#define kfree(_ptr) free(_ptr)
#endif
#ifndef kmemset
#define kmemset(_ptr, _byte, _size) memset(_ptr, _byte, _size)
#endif
#ifndef kassert
#define kassert(...)
#endif

/* What kh_put reports of a key: no memory; the key is there; a bucket that was never used; one whose key was removed. */
#define UCS_KH_PUT_FAILED (-1)
#define UCS_KH_PUT_KEY_PRESENT 0
#define UCS_KH_PUT_BUCKET_EMPTY 1
#define UCS_KH_PUT_BUCKET_CLEAR 2
typedef int ucs_kh_put_t;

/* A bucket is in use, has had a key, or is free: two bits each, sixteen buckets a word. In these bytes all are free. */
#define KH_USED_ 0u
#define KH_REMOVED_ 1u
#define KH_FREE_ 2u
#define KH_ALL_FREE_ 0xaa

static kh_inline klib_unused khint32_t kh_state_(const khint32_t *flags, khint_t bucket)
{
    return (flags[bucket / 16] >> (2 * (bucket % 16))) & 3;
}

static kh_inline klib_unused void kh_set_state_(khint32_t *flags, khint_t bucket, khint32_t state)
{
    khint32_t shift = 2 * (bucket % 16);

    flags[bucket / 16] = (flags[bucket / 16] & ~(3u << shift)) | (state << shift);
}

static kh_inline klib_unused size_t kh_state_bytes_(khint_t buckets)
{
    return ((size_t)buckets + 15) / 16 * sizeof(khint32_t);
}

/* So many buckets may be in use or have been: three of four, so that each search finds a free one. */
static kh_inline klib_unused khint_t kh_limit_(khint_t buckets)
{
    return buckets - (buckets / 4);
}

/* A power of 2, at least 4; 0, if there is none. */
static kh_inline klib_unused khint_t kh_buckets_(khint_t wanted)
{
    khint_t buckets = 4;

    while ((buckets != 0) && (buckets < wanted)) {
        buckets *= 2;
    }
    return buckets;
}

#define KHASH_TYPE(name, khkey_t, khval_t) \
    typedef struct kh_##name##_s { \
        khint_t   n_buckets, size, n_occupied, upper_bound; \
        khint32_t *flags; \
        khkey_t   *keys; \
        khval_t   *vals; \
    } kh_##name##_t;

#define KHASH_PROTOTYPES_(name, khkey_t, khval_t) \
    extern kh_##name##_t *kh_init_##name(void); \
    extern kh_##name##_t *kh_init_##name##_inplace(kh_##name##_t *h); \
    extern void kh_destroy_##name(kh_##name##_t *h); \
    extern void kh_destroy_##name##_inplace(kh_##name##_t *h); \
    extern void kh_clear_##name(kh_##name##_t *h); \
    extern khint_t kh_get_##name(const kh_##name##_t *h, khkey_t key); \
    extern int kh_resize_##name(kh_##name##_t *h, khint_t new_n_buckets); \
    extern khint_t kh_put_##name(kh_##name##_t *h, khkey_t key, int *ret); \
    extern void kh_del_##name(kh_##name##_t *h, khint_t x);

/* Tables in new memory and in the program's. */
#define KHASH_LIFE_(name, SCOPE) \
    SCOPE kh_##name##_t *kh_init_##name(void) \
    { \
        return (kh_##name##_t*)kcalloc(1, sizeof(kh_##name##_t)); \
    } \
    SCOPE kh_##name##_t *kh_init_##name##_inplace(kh_##name##_t *h) \
    { \
        kmemset(h, 0, sizeof(*h)); \
        return h; \
    } \
    SCOPE void kh_destroy_##name##_inplace(kh_##name##_t *h) \
    { \
        kfree((void*)h->vals); \
        kfree((void*)h->keys); \
        kfree((void*)h->flags); \
    } \
    SCOPE void kh_destroy_##name(kh_##name##_t *h) \
    { \
        if (h != NULL) { \
            kh_destroy_##name##_inplace(h); \
            kfree((void*)h); \
        } \
    } \
    SCOPE void kh_clear_##name(kh_##name##_t *h) \
    { \
        if ((h != NULL) && (h->flags != NULL)) { \
            kmemset(h->flags, KH_ALL_FREE_, kh_state_bytes_(h->n_buckets)); \
            h->n_occupied = h->size = 0; \
        } \
    }

/* Steps of one bucket more each time come to all buckets, once in so many steps. */
#define KHASH_SEARCH_(name, SCOPE, khkey_t, __hash_func, __hash_equal) \
    SCOPE khint_t kh_get_##name(const kh_##name##_t *h, khkey_t key) \
    { \
        khint_t at, step = 0; \
        khint32_t state; \
        \
        if (h->n_buckets == 0) { \
            return 0; \
        } \
        at = __hash_func(key) & (h->n_buckets - 1); \
        while (((state = kh_state_(h->flags, at)) != KH_FREE_) && (step < h->n_buckets)) { \
            if ((state == KH_USED_) && (__hash_equal(h->keys[at], key))) { \
                return at; \
            } \
            at = (at + ++step) & (h->n_buckets - 1); \
        } \
        return h->n_buckets; \
    }

/* Moves all entries to other memory. */
#define KHASH_RESIZE_(name, SCOPE, khkey_t, khval_t, kh_is_map, __hash_func) \
    SCOPE int kh_resize_##name(kh_##name##_t *h, khint_t new_n_buckets) \
    { \
        khint_t buckets = kh_buckets_(new_n_buckets); \
        kh_##name##_t to; \
        khint_t from, at, step; \
        \
        if (buckets == 0) { \
            return -1; \
        } \
        if (h->size >= kh_limit_(buckets)) { \
            return 0; \
        } \
        to.flags = (khint32_t*)kmalloc(kh_state_bytes_(buckets)); \
        to.keys  = (khkey_t*)kmalloc(buckets * sizeof(khkey_t)); \
        to.vals  = (kh_is_map) ? (khval_t*)kmalloc(buckets * sizeof(khval_t)) : NULL; \
        if ((to.flags == NULL) || (to.keys == NULL) || ((kh_is_map) && (to.vals == NULL))) { \
            kh_destroy_##name##_inplace(&to); \
            return -1; \
        } \
        kmemset(to.flags, KH_ALL_FREE_, kh_state_bytes_(buckets)); \
        to.n_buckets   = buckets; \
        to.n_occupied  = to.size = h->size; \
        to.upper_bound = kh_limit_(buckets); \
        for (from = 0; from < h->n_buckets; from++) { \
            if (kh_state_(h->flags, from) != KH_USED_) { \
                continue; \
            } \
            step = 0; \
            at   = __hash_func(h->keys[from]) & (buckets - 1); \
            while (kh_state_(to.flags, at) != KH_FREE_) { \
                at = (at + ++step) & (buckets - 1); \
            } \
            kh_set_state_(to.flags, at, KH_USED_); \
            to.keys[at] = h->keys[from]; \
            if (kh_is_map) { \
                to.vals[at] = h->vals[from]; \
            } \
        } \
        kh_destroy_##name##_inplace(h); \
        *h = to; \
        return 0; \
    }

/* A table that is full of removed keys is made anew with as many buckets, another one with twice as many. */
#define KHASH_CHANGE_(name, SCOPE, khkey_t, __hash_func, __hash_equal) \
    SCOPE khint_t kh_put_##name(kh_##name##_t *h, khkey_t key, int *ret) \
    { \
        khint_t at, removed, step = 0; \
        khint32_t state; \
        \
        if ((h->n_occupied >= h->upper_bound) && \
            (((h->n_buckets >> 31) && (h->size > (h->n_buckets / 2))) || \
             (kh_resize_##name(h, (h->size < (h->n_buckets / 2)) ? h->n_buckets : (h->n_buckets * 2)) < 0))) { \
            *ret = UCS_KH_PUT_FAILED; \
            return h->n_buckets; \
        } \
        removed = h->n_buckets; \
        at      = __hash_func(key) & (h->n_buckets - 1); \
        while (((state = kh_state_(h->flags, at)) != KH_FREE_) && (step < h->n_buckets)) { \
            if (state == KH_REMOVED_) { \
                removed = (removed == h->n_buckets) ? at : removed; \
            } else if (__hash_equal(h->keys[at], key)) { \
                *ret = UCS_KH_PUT_KEY_PRESENT; \
                return at; \
            } \
            at = (at + ++step) & (h->n_buckets - 1); \
        } \
        if (removed != h->n_buckets) { \
            at   = removed; \
            *ret = UCS_KH_PUT_BUCKET_CLEAR; \
        } else { \
            h->n_occupied++; \
            *ret = UCS_KH_PUT_BUCKET_EMPTY; \
        } \
        kh_set_state_(h->flags, at, KH_USED_); \
        h->keys[at] = key; \
        h->size++; \
        return at; \
    } \
    SCOPE void kh_del_##name(kh_##name##_t *h, khint_t x) \
    { \
        if ((x < h->n_buckets) && (kh_state_(h->flags, x) == KH_USED_)) { \
            kh_set_state_(h->flags, x, KH_REMOVED_); \
            h->size--; \
        } \
    }

#define KHASH_FUNCTIONS_(name, SCOPE, khkey_t, khval_t, kh_is_map, __hash_func, __hash_equal) \
    KHASH_LIFE_(name, SCOPE) \
    KHASH_SEARCH_(name, SCOPE, khkey_t, __hash_func, __hash_equal) \
    KHASH_RESIZE_(name, SCOPE, khkey_t, khval_t, kh_is_map, __hash_func) \
    KHASH_CHANGE_(name, SCOPE, khkey_t, __hash_func, __hash_equal)

/* A type with its functions, in a scope or declared; or either part of this. `kh_is_map` is 0 for a set. */
#define KHASH_DECLARE(name, khkey_t, khval_t) \
    KHASH_TYPE(name, khkey_t, khval_t) \
    KHASH_PROTOTYPES_(name, khkey_t, khval_t)
#define KHASH_INIT2(name, SCOPE, khkey_t, khval_t, kh_is_map, __hash_func, __hash_equal) \
    KHASH_TYPE(name, khkey_t, khval_t) \
    KHASH_FUNCTIONS_(name, SCOPE, khkey_t, khval_t, kh_is_map, __hash_func, __hash_equal)
#define KHASH_INIT(name, khkey_t, khval_t, kh_is_map, __hash_func, __hash_equal) \
    KHASH_INIT2(name, static kh_inline klib_unused, khkey_t, khval_t, kh_is_map, __hash_func, __hash_equal)
#define KHASH_IMPL(name, khkey_t, khval_t, kh_is_map, __hash_func, __hash_equal) \
    KHASH_FUNCTIONS_(name, static kh_inline klib_unused, khkey_t, khval_t, kh_is_map, __hash_func, __hash_equal)

#define KHASH_SET_INIT_INT(name) KHASH_INIT(name, khint32_t, char, 0, kh_int_hash_func, kh_int_hash_equal)
#define KHASH_MAP_INIT_INT(name, khval_t) KHASH_INIT(name, khint32_t, khval_t, 1, kh_int_hash_func, kh_int_hash_equal)
#define KHASH_SET_INIT_INT64(name) KHASH_INIT(name, khint64_t, char, 0, kh_int64_hash_func, kh_int64_hash_equal)
#define KHASH_MAP_INIT_INT64(name, khval_t) \
    KHASH_INIT(name, khint64_t, khval_t, 1, kh_int64_hash_func, kh_int64_hash_equal)
#define KHASH_SET_INIT_STR(name) KHASH_INIT(name, kh_cstr_t, char, 0, kh_str_hash_func, kh_str_hash_equal)
#define KHASH_MAP_INIT_STR(name, khval_t) KHASH_INIT(name, kh_cstr_t, khval_t, 1, kh_str_hash_func, kh_str_hash_equal)

#define KHASH_STATIC_INITIALIZER \
    { \
        0, 0, 0, 0, NULL, NULL, NULL \
    }

/* Hash values, which are klib's, and whether keys are equal. */
#define kh_int_hash_func(_key) ((khint32_t)(_key))
#define kh_int_hash_equal(_one, _other) ((_one) == (_other))
#define kh_int64_hash_func(_key) kh_fold_((uint64_t)(_key))
#define kh_int64_hash_equal(_one, _other) ((_one) == (_other))
#define kh_int_hash_func2(_key) kh_mix_((khint_t)(_key))
#define kh_str_hash_func(_key) kh_text_hash_(_key)

static kh_inline klib_unused khint_t kh_fold_(uint64_t key)
{
    return (khint_t)key ^ (khint_t)(key >> 33) ^ ((khint_t)key << 11);
}

/* Wang's mix of 32 bits. */
static kh_inline klib_unused khint_t kh_mix_(khint_t key)
{
    key = key - (key << 15) - 1;
    key = (key ^ (key >> 10)) * 9;
    key = key ^ (key >> 6);
    key = key - (key << 11) - 1;
    return key ^ (key >> 16);
}

/* Characters are the digits of a number to the base of 31. */
static kh_inline klib_unused khint_t kh_text_hash_(const char *text)
{
    khint_t hash = 0, letter;

    for (; *text != '\0'; text++) {
        letter = (khint_t)*text;
        hash   = (hash * 31u) + letter;
    }
    return hash;
}

static kh_inline klib_unused int kh_str_hash_equal(const char *one, const char *other)
{
    return strcmp(one, other) == 0;
}

/* By the name of the type. */
#define khash_t(name) kh_##name##_t
#define kh_init(name) kh_init_##name()
#define kh_init_inplace(name, h) kh_init_##name##_inplace(h)
#define kh_destroy(name, h) kh_destroy_##name(h)
#define kh_destroy_inplace(name, h) kh_destroy_##name##_inplace(h)
#define kh_clear(name, h) kh_clear_##name(h)
#define kh_resize(name, h, s) kh_resize_##name(h, s)
#define kh_put(name, h, k, r) kh_put_##name(h, k, r)
#define kh_get(name, h, k) kh_get_##name(h, k)
#define kh_del(name, h, k) kh_del_##name(h, k)

/* Buckets. */
#define kh_begin(h) ((khint_t)0)
#define kh_end(h) ((h)->n_buckets)
#define kh_exist(h, x) (kh_state_((h)->flags, (x)) == KH_USED_)
#define kh_key(h, x) ((h)->keys[x])
#define kh_val(h, x) ((h)->vals[x])
#define kh_value(h, x) ((h)->vals[x])
#define kh_size(h) ((h)->size)
#define kh_n_buckets(h) ((h)->n_buckets)

/* Runs code for each entry, which may remove that entry. */
#define kh_foreach(h, kvar, vvar, ...) \
    { \
        khint_t kh_at_; \
        for (kh_at_ = kh_begin(h); kh_at_ != kh_end(h); kh_at_++) { \
            if (kh_exist(h, kh_at_)) { \
                (kvar) = kh_key(h, kh_at_); \
                (vvar) = kh_val(h, kh_at_); \
                __VA_ARGS__; \
            } \
        } \
    }
#define kh_foreach_key(h, kvar, ...) \
    { \
        khint_t kh_at_; \
        for (kh_at_ = kh_begin(h); kh_at_ != kh_end(h); kh_at_++) { \
            if (kh_exist(h, kh_at_)) { \
                (kvar) = kh_key(h, kh_at_); \
                __VA_ARGS__; \
            } \
        } \
    }
#define kh_foreach_value(h, vvar, ...) \
    { \
        khint_t kh_at_; \
        for (kh_at_ = kh_begin(h); kh_at_ != kh_end(h); kh_at_++) { \
            if (kh_exist(h, kh_at_)) { \
                (vvar) = kh_val(h, kh_at_); \
                __VA_ARGS__; \
            } \
        } \
    }

#endif
