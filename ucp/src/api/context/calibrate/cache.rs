//! File of measured costs: text lines behind a key. Parsing checks the untrusted contents.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::SplitWhitespace;

use ucs::sys::{host, topo};

use crate::select::Line;

use super::super::config::Config;
use super::{Calibration, DeviceCosts, DeviceType};

const MAGIC: &str = "ucx-calibration 1";
const MAX_FILE_LEN: u64 = 1 << 16;

/// Validity of measured costs: boot, kernel, processor and library version.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Key {
    /// Random id of the boot.
    pub boot: String,
    /// Kernel version.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Library version.
    pub version: String,
}

impl Key {
    /// Key of this machine.
    pub fn here() -> Key {
        let version = env!("CARGO_PKG_VERSION").into();
        Key { boot: host::boot_id(), kernel: host::kernel(), cpu: topo::cpu_model(), version }
    }

    fn lines(&self) -> String {
        let Key { boot, kernel, cpu, version } = self;
        format!("boot {boot}\nkernel {kernel}\ncpu {cpu}\nversion {version}\n")
    }
}

/// Error of reading or writing the cache.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The file does not exist.
    #[error("nothing is kept in {}", .0.display())]
    None(PathBuf),
    /// Neither a cache directory nor a home directory is set.
    #[error("no place for measured costs: set UCX_CACHE_DIR, XDG_CACHE_HOME or HOME")]
    NoPlace,
    /// The costs were measured in another boot, on another machine, or by another version.
    #[error("{} is not of this boot, kernel, processor and version", .0.display())]
    Stale(PathBuf),
    /// The file is not a calibration file, or damaged.
    #[error("{} is not a file of measured costs (line {line})", .file.display())]
    Bad {
        /// File.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// The system reported an error.
    #[error("{}: {why}", .file.display())]
    Io {
        /// File.
        file: PathBuf,
        /// Text of the error.
        why: String,
    },
}

pub(super) fn file(config: &Config) -> Result<PathBuf, CacheError> {
    let set = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = match config.cache_dir.as_str() {
        "" => set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).map(|dir| dir.join("ucx")),
        dir => Some(dir.into()),
    };
    Ok(dir.ok_or(CacheError::NoPlace)?.join("calibration"))
}

pub(super) fn load(file: &Path, key: &Key) -> Result<Calibration, CacheError> {
    let io = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => CacheError::None(file.into()),
        _ => CacheError::Io { file: file.into(), why: e.to_string() },
    };
    if std::fs::metadata(file).map_err(io)?.len() > MAX_FILE_LEN {
        return Err(CacheError::Bad { file: file.into(), line: 1 });
    }
    let bytes = std::fs::read(file).map_err(io)?;
    let text = String::from_utf8_lossy(&bytes);
    parse(&text, key).map_err(|why| match why {
        ParseError::Stale => CacheError::Stale(file.into()),
        ParseError::Line(line) => CacheError::Bad { file: file.into(), line },
    })
}

pub(super) fn save(file: &Path, key: &Key, costs: &Calibration) -> Result<(), CacheError> {
    let io = |e: std::io::Error| CacheError::Io { file: file.into(), why: e.to_string() };
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir).map_err(io)?;
    }
    let new = file.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, text(key, costs)).map_err(io)?;
    std::fs::rename(&new, file).map_err(|e| {
        let _ = std::fs::remove_file(&new);
        io(e)
    })
}

const LINES: [&str; 5] = ["register", "put_allocated", "put_registered", "get_allocated", "get_registered"];

pub(super) fn text(key: &Key, costs: &Calibration) -> String {
    let mut out = format!("{MAGIC}\n{}", key.lines());
    let mut put = |line: String| {
        let _ = writeln!(out, "{line}");
    };
    put(format!("copy {}", costs.copy));
    put(format!("copy_far {}", costs.copy_uncached));
    if let Some(core_to_core) = costs.core_to_core {
        put(format!("across {} {}", core_to_core.fixed, core_to_core.per_byte));
    }
    for d in &costs.devices {
        let device_type = if d.device_type == DeviceType::Software { "software" } else { "hardware" };
        put(format!("device {} {} {device_type}", d.tl, d.dev));
        if let Some(overhead) = d.overhead {
            put(format!("overhead {overhead}"));
        }
        let lines = [d.register, d.put[0], d.put[1], d.get[0], d.get[1]];
        for (name, line) in LINES.iter().zip(lines).filter_map(|(name, line)| Some((name, line?))) {
            put(format!("{name} {} {}", line.fixed, line.per_byte));
        }
    }
    put("end".into());
    out
}

#[derive(PartialEq, Debug)]
pub(super) enum ParseError {
    Stale,
    /// Number of the bad line, from 1.
    Line(usize),
}

pub(super) fn parse(text: &str, key: &Key) -> Result<Calibration, ParseError> {
    let head = format!("{MAGIC}\n{}", key.lines());
    let Some(body) = text.strip_prefix(&head) else {
        return Err(if text.starts_with(MAGIC) { ParseError::Stale } else { ParseError::Line(1) });
    };
    let mut costs = Calibration { copy: f64::NAN, copy_uncached: f64::NAN, ..Calibration::default() };
    let skipped = head.lines().count();
    let mut ended = false;
    for (n, line) in body.lines().enumerate() {
        let whole = !ended && read_line(line, &mut costs, &mut ended).is_some();
        if !whole {
            return Err(ParseError::Line(skipped + n + 1));
        }
    }
    let whole = ended && costs.copy.is_finite() && costs.copy_uncached.is_finite();
    if whole { Ok(costs) } else { Err(ParseError::Line(text.lines().count())) }
}

fn read_line(line: &str, costs: &mut Calibration, ended: &mut bool) -> Option<()> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    match name {
        "end" => *ended = true,
        "copy" => costs.copy = parse_ns(&mut words)?,
        "copy_far" => costs.copy_uncached = parse_ns(&mut words)?,
        "across" => costs.core_to_core = Some(parse_line(&mut words)?),
        "device" => {
            let (tl, dev) = (words.next()?.to_owned(), words.next()?.to_owned());
            let device_type = match words.next()? {
                "software" => DeviceType::Software,
                "hardware" => DeviceType::Hardware,
                _ => return None,
            };
            let (put, get) = ([None; 2], [None; 2]);
            costs.devices.push(DeviceCosts {
                tl,
                dev,
                device_type,
                overhead: None,
                register: None,
                put,
                get,
            });
        }
        "overhead" => costs.devices.last_mut()?.overhead = Some(parse_ns(&mut words)?),
        name => {
            let nth = LINES.iter().position(|line| *line == name)?;
            let (device, line) = (costs.devices.last_mut()?, Some(parse_line(&mut words)?));
            match nth {
                0 => device.register = line,
                1 | 2 => device.put[nth - 1] = line,
                _ => device.get[nth - 3] = line,
            }
        }
    }
    words.next().is_none().then_some(())
}

/// Parses a time in ns: not negative, shorter than an hour.
fn parse_ns(words: &mut SplitWhitespace<'_>) -> Option<f64> {
    let number: f64 = words.next()?.parse().ok()?;
    (0.0..3.6e12).contains(&number).then_some(number)
}

fn parse_line(words: &mut SplitWhitespace<'_>) -> Option<Line> {
    Some(Line::new(parse_ns(words)?, parse_ns(words)?))
}
