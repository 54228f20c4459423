/* What both ends of the test with libfabric share: lengths of messages, their bytes, and raw addresses as text. */
#ifndef LIBFABRIC_LENGTHS_H
#define LIBFABRIC_LENGTHS_H

#include "check_macro.h"
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define RAW_LENGTH   32
#define TO_LIBFABRIC 1000
#define TO_UCP       2000
#define LONGEST      (3 << 20)

/* One packet, several, messages that the receiver reads. */
static const size_t lengths[] = {0, 1, 8, 1000, 4096, 8000, 9000, 20000, 65536, 300000, 1 << 20, LONGEST};
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static void fill_pattern(unsigned char *at, size_t length, unsigned seed)
{
    size_t i;
    for (i = 0; i < length; i++) {
        at[i] = (unsigned char)(i * 7 + i / 251 + seed);
    }
}

static void check_pattern(const unsigned char *at, size_t length, unsigned seed)
{
    size_t i;
    for (i = 0; i < length; i++) {
        CHECK(at[i] == (unsigned char)(i * 7 + i / 251 + seed));
    }
}

static void print_raw(const unsigned char *raw)
{
    unsigned i;
    for (i = 0; i < RAW_LENGTH; i++) {
        printf("%02x", raw[i]);
    }
    printf("\n");
    fflush(stdout);
}

static void read_raw(unsigned char *raw)
{
    unsigned i, byte;
    char digits[3] = "";

    for (i = 0; i < RAW_LENGTH; i++) {
        CHECK(read(0, digits, 2) == 2);
        CHECK(sscanf(digits, "%2x", &byte) == 1);
        raw[i] = (unsigned char)byte;
    }
    CHECK(read(0, digits, 1) == 1);
}

/* Whether the program that started this one has closed its input. */
static int input_has_ended(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;

    return poll(&input, 1, 0) > 0 && read(0, &byte, 1) == 0;
}

#endif
