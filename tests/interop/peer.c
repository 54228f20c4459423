/*
 * One end of the interop matrix, played by libfabric's EFA provider: reads steps from standard input, answers each with
 * a line `ok ...` or `no WHY`, and prints a line for every completion. Started by `interop`; language in README.md.
 * Never decides whether a result is right: it says what it saw.
 */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Takes in whole lines; false at the end of the script. */
static bool read_steps(int patience_ms)
{
	static char text[65536];
	static size_t have;
	struct pollfd in = { .fd = 0, .events = POLLIN };
	if (poll(&in, 1, patience_ms) <= 0)
		return true;
	ssize_t n = read(0, text + have, sizeof text - 1 - have);
	if (n <= 0)
		return n < 0 && errno == EINTR;
	have += (size_t)n;
	text[have] = 0;
	char *line = text, *end;
	while ((end = strchr(line, '\n'))) {
		*end = 0;
		if (!step(line))
			return false;
		line = end + 1;
	}
	have -= (size_t)(line - text);
	memmove(text, line, have);
	return true;
}

int main(void)
{
	unsigned idle = 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (;;) {
		/* A provider that is not asked makes no progress: sleep only when nothing happens, and not for long. */
		if (!read_steps(idle > 64 ? 1 : 0))
			break;
		bool busy = !stalled && (progress() | post_waiting());
		idle = busy ? 0 : idle + 1;
	}
	close_endpoint();
	close_fabric();
	return 0;
}
