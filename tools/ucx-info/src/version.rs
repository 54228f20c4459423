//! `-v`: version of the build and of its wire protocol; `-b`: how it was built.

use serde::Serialize;

#[derive(Serialize)]
pub struct Version {
    version: &'static str,
    wire_protocol: &'static str,
    target: String,
    build: &'static str,
}

impl Version {
    pub fn new() -> Version {
        Version {
            version: env!("CARGO_PKG_VERSION"),
            wire_protocol: "EFA RDM v4",
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "# Version {}", self.version)?;
        writeln!(f, "# Wire protocol: {}", self.wire_protocol)?;
        writeln!(f, "# Built for: {}, {}", self.target, self.build)
    }
}

#[derive(Serialize)]
pub struct Build(Vec<(&'static str, &'static str)>);

impl Build {
    pub fn new() -> Build {
        let yes = |is: bool| if is { "yes" } else { "no" };
        Build(vec![
            ("debug assertions", yes(cfg!(debug_assertions))),
            ("EFA hardware (feature verbs)", yes(cfg!(feature = "verbs"))),
            ("software EFA device", "yes"),
            ("endian", if cfg!(target_endian = "little") { "little" } else { "big" }),
            ("pointer width", if cfg!(target_pointer_width = "64") { "64" } else { "32" }),
            ("AVX2 for all code", yes(cfg!(target_feature = "avx2"))),
            ("panics", if cfg!(panic = "unwind") { "unwind" } else { "abort" }),
        ])
    }
}

impl std::fmt::Display for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "# {name}: {value}"))
    }
}
