/*
 * A step in words, its options, and the answer to it. Called by every step; never looks at what the words mean.
 */
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 32 };

char *words[MAX_WORDS];
int n_words;

void split(char *line)
{
	n_words = 0;
	for (char *word = strtok(line, " \n"); word && n_words < MAX_WORDS; word = strtok(NULL, " \n"))
		words[n_words++] = word;
}

/* The value of `name=VALUE` in the step, or NULL. A bare `name` is the empty string. */
const char *option(const char *name)
{
	size_t n = strlen(name);
	for (int i = 1; i < n_words; i++) {
		if (strncmp(words[i], name, n) == 0 && (words[i][n] == '=' || words[i][n] == 0))
			return words[i][n] ? words[i] + n + 1 : "";
	}
	return NULL;
}

uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = option(name);
	return text ? strtoull(text, NULL, 0) : otherwise;
}

/* The length that an operation names behind its id. */
size_t length(void) { return strtoull(words[2], NULL, 0); }

void ok(void) { puts("ok"); }
void no(const char *why) { printf("no %s\n", why); }
void no_fi(const char *call, long err) { printf("no %s: %s\n", call, fi_strerror((int)(err < 0 ? -err : err))); }
