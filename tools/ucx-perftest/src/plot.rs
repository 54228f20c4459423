//! `--plot FILE.svg`: results of this run and of saved ones (lines of `--json`), over the size of the message. One panel
//! for times, one for bandwidth; a curve for each file, test and transport, and for each window, layout, number of threads and
//! memory where these differ. Called by `main` when all is measured. Never part of a measurement.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use plotters::prelude::*;
use serde::Deserialize;
use tools_common::units::short_bytes;

use crate::fail::Failure;
use crate::spec::Test;

const SIZE: (u32, u32) = (1100, 900);

/// What a plot needs of a saved result; other fields may come and go.
#[derive(Clone, Debug, Deserialize)]
struct Saved {
    test: String,
    transport: String,
    size: usize,
    latency_us: Latency,
    bandwidth_mbs: f64,
    #[serde(default)]
    data_path: String,
    #[serde(default)]
    window: u32,
    #[serde(default)]
    pattern: Option<String>,
    #[serde(default)]
    #[serde(rename = "seats")]
    members: Option<usize>,
    #[serde(default)]
    run: Asked,
}

#[derive(Clone, Debug, Deserialize)]
struct Latency {
    p50: f64,
    avg: f64,
}

/// What was asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    layout: Option<String>,
    threads: u32,
    memory: String,
    target: String,
}

/// Points of one curve: size and value, by size.
type Curves = BTreeMap<String, BTreeMap<usize, f64>>;

/// A result, and whose it is.
struct Point {
    run: String,
    result: Saved,
}

const THIS_RUN: &str = "this run";

/// Reads saved results and draws them together with the lines of this run.
pub fn draw(file: &Path, saved: &[impl AsRef<Path>], this_run: &[String]) -> Result<(), Failure> {
    let mut points = Vec::new();
    let names = names(saved);
    for (path, name) in saved.iter().zip(names) {
        let path = path.as_ref();
        let cannot = |e: std::io::Error| {
            Failure::Usage(format!("--with: cannot read {}: {}", path.display(), e.kind()))
        };
        let text = std::fs::read_to_string(path).map_err(cannot)?;
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let at = |why: &str| Failure::Usage(format!("--with: {}, line {}: {why}", path.display(), n + 1));
            points.push(point(&name, line).map_err(|why| at(&why))?);
        }
    }
    for line in this_run {
        points.push(point(THIS_RUN, line).map_err(Failure::Run)?);
    }
    let (times, bandwidths) = curves(&points);
    if times.is_empty() && bandwidths.is_empty() {
        return Err(Failure::Usage(
            "--plot: no results: measure some (-t), or name saved ones (--with)".into(),
        ));
    }
    let text = svg(&times, &bandwidths).map_err(|e| Failure::Run(format!("--plot: {e}")))?;
    std::fs::write(file, text)
        .map_err(|e| Failure::Unsupported(format!("--plot: cannot write {}: {}", file.display(), e.kind())))
}

/// What each file is called: by its name without the ending, or by its path where another has the same.
fn names(saved: &[impl AsRef<Path>]) -> Vec<String> {
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let stems: Vec<String> = saved.iter().map(|path| stem(path.as_ref())).collect();
    let is_alone =
        |name: &String| *name != THIS_RUN && stems.iter().filter(|other| *other == name).count() == 1;
    let name = |(stem, path): (&String, &Path)| {
        if is_alone(stem) { stem.clone() } else { path.display().to_string() }
    };
    stems.iter().zip(saved.iter().map(AsRef::as_ref)).map(name).collect()
}

fn point(run: &str, line: &str) -> Result<Point, String> {
    let result: Saved =
        serde_json::from_str(line).map_err(|_| "not a result of ucx-perftest --json".to_owned())?;
    Test::parse(&result.test)?;
    Ok(Point { run: run.to_owned(), result })
}

impl Point {
    /// What a curve is of in any case.
    fn name(&self) -> String {
        let r = &self.result;
        let group = match (&r.pattern, r.members) {
            (Some(pattern), Some(members)) if members > 2 => format!(" {pattern} of {members}"),
            _ => String::new(),
        };
        format!("{}: {} {}{group}", self.run, r.test, r.transport)
    }

    /// What tells curves of one name apart: a part of a curve's name where it differs.
    fn marks(&self) -> [String; 4] {
        let r = &self.result;
        let memory = match (r.run.target.as_str(), r.run.memory.as_str()) {
            ("own", _) => " --own",
            (_, "registered") => " -z",
            _ => "",
        };
        let layout = r.run.layout.as_ref().map_or(String::new(), |layout| format!(" {layout}"));
        [layout, format!(" -O {}", r.window), format!(" -T {}", r.run.threads), memory.to_owned()]
    }
}

/// Times and bandwidths. No result is lost: those of one curve and one size have names of their own.
fn curves(points: &[Point]) -> (Curves, Curves) {
    let (mut times, mut bandwidths) = (Curves::new(), Curves::new());
    let mut alike: BTreeMap<String, Vec<&Point>> = BTreeMap::new();
    points.iter().for_each(|p| alike.entry(p.name()).or_default().push(p));
    for (name, points) in alike {
        let marks: Vec<[String; 4]> = points.iter().map(|p| p.marks()).collect();
        let differs: Vec<usize> = (0..4).filter(|n| marks.iter().any(|m| m[*n] != marks[0][*n])).collect();
        let mut curves: BTreeMap<String, Vec<&Point>> = BTreeMap::new();
        for (point, marks) in points.iter().zip(&marks) {
            let marks: String = differs.iter().map(|n| marks[*n].as_str()).collect();
            curves.entry(name.clone() + &marks).or_default().push(point);
        }
        for (name, points) in curves {
            let sizes: BTreeSet<usize> = points.iter().map(|p| p.result.size).collect();
            // A curve may go over several data paths, but has one at each size.
            let by_path = sizes.len() < points.len();
            for Point { result: r, .. } in points {
                let path = if by_path && r.run.layout.as_ref() != Some(&r.data_path) {
                    format!(" {}", r.data_path)
                } else {
                    String::new()
                };
                add(&mut times, &mut bandwidths, &(name.clone() + &path), r);
            }
        }
    }
    (times, bandwidths)
}

fn add(times: &mut Curves, bandwidths: &mut Curves, name: &str, r: &Saved) {
    // Of a stream the time of one post says little.
    let (curves, value) = match Test::parse(&r.test) {
        Ok(test) if test.times() != "latency" => (bandwidths, r.bandwidth_mbs),
        _ => (times, if r.latency_us.p50 > 0.0 { r.latency_us.p50 } else { r.latency_us.avg }),
    };
    // The same once more.
    let again = (2..).map(|n| format!("{name} #{n}"));
    let mut names = std::iter::once(name.to_owned()).chain(again);
    let is_free = |name: &String| curves.get(name).is_none_or(|curve| !curve.contains_key(&r.size));
    if let Some(name) = names.find(is_free) {
        curves.entry(name).or_default().insert(r.size, value);
    }
}

fn svg(times: &Curves, bandwidths: &Curves) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let panels =
            [(times, "latency", "median time, usec"), (bandwidths, "bandwidth", "2^20 bytes a second")];
        let drawn: Vec<_> = panels.iter().filter(|(curves, ..)| !curves.is_empty()).collect();
        for (part, (curves, title, unit)) in area.split_evenly((drawn.len(), 1)).iter().zip(drawn) {
            panel(part, curves, title, unit)?;
        }
        area.present()?;
    }
    Ok(text)
}

/// A logarithm of nothing does not exist: such a value stands at the edge.
fn at_least(value: f64, least: f64) -> f64 {
    if value.is_finite() { value.max(least) } else { least }
}

fn panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    curves: &Curves,
    title: &str,
    unit: &str,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let points =
        || curves.values().flatten().map(|(size, y)| (at_least(*size as f64, 1.0), at_least(*y, 1e-4)));
    let span = |of: fn((f64, f64)) -> f64| {
        let (low, high) =
            points().map(of).fold((f64::MAX, 0.0), |(l, h): (f64, f64), v| (l.min(v), h.max(v)));
        // Some room on both sides, also around a single value.
        low / 1.5..high * 1.5
    };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(span(|p| p.0).log_scale().base(2.0), span(|p| p.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("message size, bytes")
        .y_desc(unit)
        .x_label_formatter(&|x| short_bytes(x.round() as usize))
        .y_label_formatter(&|y| number(*y))
        .x_labels(24)
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    for (n, (name, curve)) in curves.iter().enumerate() {
        let color = Palette99::pick(n).to_rgba();
        let line: Vec<(f64, f64)> =
            curve.iter().map(|(size, y)| (at_least(*size as f64, 1.0), at_least(*y, 1e-4))).collect();
        chart
            .draw_series(LineSeries::new(line.iter().copied(), color.stroke_width(2)))?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(line.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}

/// As few digits as tell neighbouring marks apart.
fn number(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(test: &str, size: usize, p50: f64, mbs: f64) -> String {
        format!(
            "{{\"test\":\"{test}\",\"transport\":\"posix\",\"size\":{size},\"latency_us\":{{\"p50\":{p50},\"avg\":1.0,\
             \"p99_9\":2.0}},\"bandwidth_mbs\":{mbs},\"something\":[1]}}"
        )
    }

    fn file(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("ucx-perftest-plot-{}-{name}", std::process::id()))
    }

    #[test]
    fn every_curve_has_its_name_and_every_point_its_mark() {
        let (saved, out) = (file("base.json"), file("out.svg"));
        let lines =
            [line("tag_lat", 8, 0.5, 0.0), line("tag_lat", 64, 0.6, 0.0), line("tag_bw", 8, 0.0, 99.0)];
        std::fs::write(&saved, lines.join("\n")).unwrap();
        // A size of nothing and a time of nothing have no logarithm.
        draw(&out, &[&saved], &[line("am_lat", 0, 0.0, 1.0)]).unwrap();
        let svg = std::fs::read_to_string(&out).unwrap();
        let name = saved.file_stem().unwrap().to_str().unwrap().to_owned();
        for text in [
            format!("{name}: tag_lat posix"),
            format!("{name}: tag_bw posix"),
            "this run: am_lat posix".into(),
        ] {
            assert!(svg.contains(&text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 4, "{svg}");
        assert!(svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        std::fs::remove_file(saved).unwrap();
        std::fs::remove_file(out).unwrap();
    }

    #[test]
    fn what_differs_is_another_curve() {
        let with = |more: &str| line("put_bw", 8, 0.0, 1.0).replace("\"something\":[1]", more);
        let names = |lines: &[String]| {
            let points: Vec<Point> = lines.iter().map(|line| point("r", line).unwrap()).collect();
            curves(&points).1.into_keys().collect::<Vec<_>>()
        };
        let (short, zcopy) =
            ("\"window\":32,\"data_path\":\"short\"", "\"window\":32,\"data_path\":\"zcopy\"");
        let own = "\"window\":32,\"data_path\":\"short\",\"run\":{\"target\":\"own\",\"threads\":2}";
        assert_eq!(names(&[with(short)]), ["r: put_bw posix"]);
        assert_eq!(names(&[with(short), with(zcopy)]), ["r: put_bw posix short", "r: put_bw posix zcopy"]);
        let longer = with(zcopy).replace("\"size\":8", "\"size\":9");
        assert_eq!(names(&[with(short), longer]), ["r: put_bw posix"], "one way after the other");
        assert_eq!(
            names(&[with(short), with(&short.replace("32", "1"))]),
            ["r: put_bw posix -O 1", "r: put_bw posix -O 32"]
        );
        assert_eq!(names(&[with(short), with(own)]), ["r: put_bw posix -T 0", "r: put_bw posix -T 2 --own"]);
        assert_eq!(
            names(&[with(short), with(short), with(short)]),
            ["r: put_bw posix short", "r: put_bw posix short #2", "r: put_bw posix short #3"]
        );
    }

    #[test]
    fn files_of_one_name_are_told_apart() {
        assert_eq!(names(&["d1/r.json", "d2/r.json", "d1/s.json"]), ["d1/r.json", "d2/r.json", "s"]);
        assert_eq!(names(&["this run.json"]), ["this run.json"]);
    }

    #[test]
    fn what_cannot_be_drawn_is_told() {
        let none: [&Path; 0] = [];
        let text = draw(&file("x.svg"), &none, &[]).unwrap_err().to_string();
        assert!(text.starts_with("--plot: no results: "), "{text}");
        let text = draw(&file("x.svg"), &["/no/such/file"], &[]).unwrap_err().to_string();
        assert_eq!(text, "--with: cannot read /no/such/file: entity not found");
        let bad = file("bad.json");
        std::fs::write(&bad, format!("{}\nhello\n", line("tag_lat", 8, 1.0, 1.0))).unwrap();
        let text = draw(&file("x.svg"), &[&bad], &[]).unwrap_err().to_string();
        assert_eq!(text, format!("--with: {}, line 2: not a result of ucx-perftest --json", bad.display()));
        std::fs::remove_file(bad).unwrap();
        let out = Path::new("/no/such/folder/x.svg");
        let text = draw(out, &none, &[line("tag_lat", 8, 1.0, 1.0)]).unwrap_err().to_string();
        assert_eq!(text, "--plot: cannot write /no/such/folder/x.svg: entity not found");
    }
}
