//! `--calibrate`: measures the cost of copies, core-to-core transfers, the kernel and devices, saves it for
//! contexts with `UCX_CALIBRATE=y`, and shows it beside the costs in the transports' attributes.

use std::fmt::Write as _;
use std::time::Instant;

use serde::Serialize;
use ucp::select::Line;
use ucp::{Calibration, Config};
use ucs::config::{Source, Table as _};
use uct::api::{Iface as _, Linear};

#[derive(Serialize)]
pub struct Measured {
    /// Bytes per second, of data in the caches and beyond.
    copy: f64,
    #[serde(rename = "copy_far")]
    copy_uncached: f64,
    #[serde(rename = "across")]
    core_to_core: Option<Time>,
    devices: Vec<Device>,
    took_ms: f64,
    /// Path of the file, or the error.
    #[serde(rename = "kept")]
    saved_to: Result<String, String>,
}

/// `fixed` ns, and `per_byte` ns for each byte.
#[derive(Serialize, Clone, Copy)]
struct Time {
    fixed: f64,
    per_byte: f64,
}

#[derive(Serialize)]
struct Device {
    transport: String,
    device: String,
    costs: Vec<Cost>,
}

#[derive(Serialize)]
struct Cost {
    name: &'static str,
    measured: Option<Time>,
    #[serde(rename = "said")]
    advertised: Time,
}

fn from_line(line: Line) -> Time {
    Time { fixed: line.fixed, per_byte: line.per_byte }
}

fn from_linear(line: Linear) -> Time {
    Time { fixed: line.fixed, per_byte: line.per_byte }
}

pub fn measure(source: &Source) -> Result<Measured, String> {
    let config = Config::load(source).map_err(|e| e.to_string())?;
    let found = uct::any::resources(source).map_err(|e| e.to_string())?;
    let started = Instant::now();
    let costs = Calibration::measure(&found);
    let took_ms = started.elapsed().as_secs_f64() * 1e3;
    let saved_to = costs.save(&config).map(|file| file.display().to_string()).map_err(|e| e.to_string());
    let mut devices = Vec::new();
    for d in &costs.devices {
        let iface = uct::any::open(&d.tl, &d.dev, source).map_err(|e| e.to_string())?;
        let attr = iface.attr();
        let (fixed, per_byte) = attr.reg_cost;
        let row = |name, measured: Option<Line>, advertised| Cost {
            name,
            measured: measured.map(from_line),
            advertised,
        };
        devices.push(Device {
            transport: d.tl.clone(),
            device: d.dev.clone(),
            costs: vec![
                row(
                    "message, at either end",
                    d.overhead.map(|ns| Line::new(ns, 0.0)),
                    fixed_time(attr.overhead),
                ),
                row("registration", d.register, Time { fixed, per_byte }),
                row("put, memory of its own", d.put[0], from_linear(attr.rma.put_allocated)),
                row("put, other memory", d.put[1], from_linear(attr.rma.put_registered)),
                row("get, memory of its own", d.get[0], from_linear(attr.rma.get_allocated)),
                row("get, other memory", d.get[1], from_linear(attr.rma.get_registered)),
            ],
        });
    }
    let per_second = |ns: f64| if ns > 0.0 { 1e9 / ns } else { f64::INFINITY };
    Ok(Measured {
        copy: per_second(costs.copy),
        copy_uncached: per_second(costs.copy_uncached),
        core_to_core: costs.core_to_core.map(from_line),
        devices,
        took_ms,
        saved_to,
    })
}

fn fixed_time(fixed: f64) -> Time {
    Time { fixed, per_byte: 0.0 }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} nsec", self.fixed)?;
        if self.per_byte > 0.0 { write!(f, " + {:.4} nsec/byte", self.per_byte) } else { Ok(()) }
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = String::new();
        writeln!(out, "# Measured in {:.1} ms", self.took_ms)?;
        let mb = |per_second: f64| per_second / 1_048_576.0;
        writeln!(
            out,
            "# Copies: {:.0} MB/sec in the cache, {:.0} beyond",
            mb(self.copy),
            mb(self.copy_uncached)
        )?;
        match self.core_to_core {
            Some(time) => writeln!(out, "# Between processors: {time}")?,
            None => writeln!(out, "# Between processors: there was only one at a time")?,
        }
        for d in &self.devices {
            writeln!(out, "#\n# Transport: {}, device: {}", d.transport, d.device)?;
            for cost in &d.costs {
                let measured = cost.measured.map_or("not there".into(), |time| time.to_string());
                writeln!(out, "# {:>23}: {measured} (its attributes: {})", cost.name, cost.advertised)?;
            }
        }
        match &self.saved_to {
            Ok(file) => writeln!(out, "#\n# Kept in {file}, for contexts with UCX_CALIBRATE=y")?,
            Err(why) => writeln!(out, "#\n# Not kept: {why}")?,
        }
        f.write_str(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_is_measured_and_saved() {
        let dir = std::env::temp_dir().join(format!("ucx-info-calibrate-{}", std::process::id()));
        let source = Source::empty().with("UCX_CACHE_DIR", dir.to_str().unwrap());
        let measured = measure(&source).unwrap();
        assert!(measured.copy > 1e6 && measured.copy_uncached > 1e6);
        let efa = measured.devices.iter().find(|d| d.transport == "efa").unwrap();
        assert!(efa.costs.iter().any(|cost| cost.measured.is_some_and(|time| time.fixed > 0.0)));
        let text = measured.to_string();
        assert!(text.contains("Kept in ") && text.contains("put, other memory: "), "{text}");
        assert!(Calibration::load(&Config::load(&source).unwrap()).is_ok());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
