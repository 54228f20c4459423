//! Conformance, scenario, simulation and multi-process suites.
