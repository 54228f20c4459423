//! Services: status, config, tracing, stats, pools, slots, time, topology, memory.
