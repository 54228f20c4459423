//! Options of `ucx_perftest` that mean nothing here yet. Read with the others, so that the answer names what was asked
//! for; a value that asks for what happens anyway passes.

use clap::Args;

/// What hands know from `ucx_perftest` and is not here: refused by name, not as an unknown letter.
#[derive(Args, Debug, Clone, Default)]
pub struct Later {
    #[arg(short = 'm', hide = true, value_name = "MEM", help = "memory types other than host")]
    m: Option<String>,
    #[arg(short = 'i', hide = true, help = "distance between pieces")]
    i: Option<String>,
    #[arg(short = 'B', hide = true, help = "lazy registration")]
    b: bool,
    #[arg(short = 'A', hide = true, help = "asynchronous progress mode")]
    a: Option<String>,
    #[arg(short = 'M', hide = true, help = "thread support level")]
    thread_level: Option<String>,
    #[arg(short = 'r', hide = true, help = "receive mode of stream tests")]
    r: Option<String>,
    /// Every worker can wake.
    #[arg(short = 'I', hide = true, help = "wake-up feature")]
    _wake: bool,
    #[arg(short = 'z', hide = true, help = "pre-registered memory handle")]
    z: bool,
    #[arg(short = 'K', hide = true, help = "start by MAD")]
    k: Option<String>,
}

impl Later {
    /// An error that names the first option asked for.
    pub fn check(&self) -> Result<(), String> {
        let harmless = |given: &Option<String>, ok: &str| given.as_deref().is_none_or(|v| v == ok);
        let asked = [
            (
                !harmless(&self.m, "host") && !harmless(&self.m, "host,host"),
                "-m",
                "memory types other than host",
            ),
            (!harmless(&self.i, "0"), "-i", "a distance between pieces"),
            (self.b, "-B", "lazy registration"),
            (self.a.is_some(), "-A", "asynchronous progress"),
            (!harmless(&self.thread_level, "single"), "-M", "thread levels other than single"),
            (!harmless(&self.r, "recv"), "-r", "a receive mode other than recv"),
            (self.z, "-z", "memory handles"),
            (self.k.is_some(), "-K", "starting by MAD"),
        ];
        match asked.iter().find(|(given, ..)| *given) {
            Some((_, flag, what)) => Err(format!("option {flag} ({what}) is not supported yet")),
            None => Ok(()),
        }
    }
}
