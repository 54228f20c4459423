/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCT_API_VERSION_H_
#define UCT_API_VERSION_H_

#define UCT_VERNO_MAJOR 1
#define UCT_VERNO_MINOR 23
#define UCT_VERNO_PATCH 0
#define UCT_VERNO_EXTRA ""
#define UCT_VERNO_STRING "1.23.0"

#define UCT_MAJOR_BIT (24UL)
#define UCT_MINOR_BIT (16UL)
#define UCT_VERSION(_major, _minor) (((_major) << UCT_MAJOR_BIT) | ((_minor) << UCT_MINOR_BIT))
#define UCT_API ((1L << UCT_MAJOR_BIT) | (23L << UCT_MINOR_BIT))

#endif
