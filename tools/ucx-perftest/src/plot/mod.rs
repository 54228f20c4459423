//! `--plot FILE.svg`: latency and bandwidth of this run and of saved ones (lines of `--json`) over the
//! message size. Tests differ by colour, runs by dash pattern. Called by `main` after all measurements.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tools_common::out::printable;

mod svg;

use crate::fail::Failure;
use crate::spec::Test;
use svg::{Axis, Curve, Panel};

/// The fields of a saved result that a plot needs; it may have others.
#[derive(Clone, Debug, Deserialize)]
struct SavedResult {
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
    #[serde(default, rename = "seats")]
    members: Option<usize>,
    #[serde(default)]
    run: RunSettings,
    /// Name of what measured it, such as `UCX 1.13.1`, if the file's name does not say so.
    #[serde(default)]
    program: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Latency {
    p50: f64,
    avg: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RunSettings {
    layout: Option<String>,
    threads: u32,
    memory: String,
    target: String,
}

struct Point {
    run: String,
    test: Test,
    result: SavedResult,
}

const THIS_RUN: &str = "this run";
/// MB/s in results are of 2^20 bytes; plots show 10^9.
const GB_PER_MB: f64 = 1_048_576.0 / 1e9;

/// The file of `--plot`: only SVG can be written.
pub fn svg_path(path: PathBuf) -> Result<PathBuf, String> {
    match path.extension() {
        Some(ending) if ending.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err(format!("'{}': plots are written as SVG: name a file that ends with .svg", path.display())),
    }
}

/// Reads saved results and draws them together with the lines of this run.
pub fn draw(file: &Path, saved: &[impl AsRef<Path>], this_run: &[String]) -> Result<(), Failure> {
    let mut points = Vec::new();
    for line in this_run {
        points.push(point(THIS_RUN, line).map_err(Failure::Run)?);
    }
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
    let panels = panels(&points);
    if panels.is_empty() {
        return Err(Failure::Usage(
            "--plot: no results: measure some (-t), or name saved ones (--with)".into(),
        ));
    }
    let text = svg::draw(&panels).map_err(|e| Failure::Run(format!("--plot: {e}")))?;
    std::fs::write(file, text).map_err(|e| cannot_write(file, &e))
}

fn cannot_write(file: &Path, e: &std::io::Error) -> Failure {
    Failure::Unsupported(format!("--plot: cannot write {}: {}", file.display(), e.kind()))
}

/// A file for a plot that can be written. One that was made for this is removed again if nothing was drawn.
pub struct Place<'a> {
    file: &'a Path,
}

impl Place<'_> {
    /// Opens the file for writing, and leaves what it has.
    pub fn open(file: &Path) -> Result<Place<'_>, Failure> {
        let opened = std::fs::File::options().create(true).append(true).open(file);
        opened.map_err(|e| cannot_write(file, &e))?;
        Ok(Place { file })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Its own content is there if it has some.
        if std::fs::metadata(self.file).is_ok_and(|found| found.is_file() && found.len() == 0) {
            let _ = std::fs::remove_file(self.file);
        }
    }
}

/// A name for each file: its own without the ending, or its path if another file has the same.
fn names(saved: &[impl AsRef<Path>]) -> Vec<String> {
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let stems: Vec<String> = saved.iter().map(|path| stem(path.as_ref())).collect();
    let is_unique =
        |name: &String| *name != THIS_RUN && stems.iter().filter(|other| *other == name).count() == 1;
    let name = |(stem, path): (&String, &Path)| {
        if is_unique(stem) { stem.clone() } else { path.display().to_string() }
    };
    stems.iter().zip(saved.iter().map(AsRef::as_ref)).map(name).collect()
}

fn point(run: &str, line: &str) -> Result<Point, String> {
    let result: SavedResult =
        serde_json::from_str(line).map_err(|_| "not a result of ucx-perftest --json".to_owned())?;
    let run = result.program.clone().unwrap_or_else(|| run.to_owned());
    Ok(Point { run, test: Test::parse(&result.test)?, result })
}

impl Point {
    fn axis(&self) -> Axis {
        if self.test.times() == "latency" { Axis::Latency } else { Axis::Bandwidth }
    }

    fn value(&self) -> f64 {
        let r = &self.result;
        match self.axis() {
            Axis::Latency if r.latency_us.p50 > 0.0 => r.latency_us.p50,
            Axis::Latency => r.latency_us.avg,
            Axis::Bandwidth => r.bandwidth_mbs * GB_PER_MB,
        }
    }

    /// The test in words: `tag latency`.
    fn words(&self) -> String {
        let about = self.test.about().split(" / ").next().unwrap_or_default();
        about.replace(" match ", " ")
    }

    /// Settings that tell curves of one test apart. Each is part of a label only where it differs.
    fn settings(&self) -> [String; 7] {
        let r = &self.result;
        let group = match (&r.pattern, r.members) {
            (Some(pattern), Some(members)) if members > 2 => format!("{pattern} of {members}"),
            _ => "pair".into(),
        };
        let memory = match (r.run.target.as_str(), r.run.memory.as_str()) {
            ("own", _) => "--own",
            (_, "registered") => "-z",
            _ => "",
        };
        let layout = r.run.layout.clone().unwrap_or_default();
        [
            r.test.clone(),
            r.transport.clone(),
            group,
            layout,
            format!("-O {}", r.window),
            format!("-T {}", r.run.threads),
            memory.to_owned(),
        ]
    }
}

/// Latency and bandwidth, each if any. A test has one colour in all runs, a run one dash pattern.
fn panels(points: &[Point]) -> Vec<Panel> {
    let mut runs: Vec<&str> = Vec::new();
    for point in points {
        if !runs.contains(&point.run.as_str()) {
            runs.push(&point.run);
        }
    }
    // Latency and bandwidth of one operation share a colour.
    let mut operations: Vec<String> = Vec::new();
    let mut panels = Vec::new();
    for axis in [Axis::Latency, Axis::Bandwidth] {
        let named = name_points(points.iter().filter(|p| p.axis() == axis).collect());
        let mut curves = Vec::new();
        for (name, by_run) in named {
            let operation = name.replace(" latency", "").replace(" bandwidth", "");
            let known = operations.iter().position(|known| *known == operation);
            let color = known.unwrap_or(operations.len());
            if known.is_none() {
                operations.push(operation);
            }
            for (dash, run) in runs.iter().enumerate() {
                let Some(values) = by_run.get(run) else { continue };
                let points = values.iter().map(|(size, value)| (*size as f64, *value)).collect();
                let label = printable(&format!("{name}, {run}"));
                curves.push(Curve { label, color, dash, points });
            }
        }
        if !curves.is_empty() {
            panels.push(Panel { axis, curves });
        }
    }
    panels
}

type ByRun<'a> = BTreeMap<&'a str, BTreeMap<usize, f64>>;

/// Groups points by test and what differs. A second result of one name, run and size is named apart.
fn name_points<'a>(points: Vec<&'a Point>) -> BTreeMap<String, ByRun<'a>> {
    let mut by_words: BTreeMap<String, Vec<&Point>> = BTreeMap::new();
    points.into_iter().for_each(|p| by_words.entry(p.words()).or_default().push(p));
    let mut named: BTreeMap<String, ByRun<'a>> = BTreeMap::new();
    for (words, points) in by_words {
        let settings: Vec<[String; 7]> = points.iter().map(|p| p.settings()).collect();
        let differs = |n: usize| settings.iter().any(|s| s[n] != settings[0][n]);
        let differing: Vec<usize> = (0..settings[0].len()).filter(|n| differs(*n)).collect();
        let mut curves: BTreeMap<String, Vec<&Point>> = BTreeMap::new();
        for (point, settings) in points.iter().zip(&settings) {
            let shown = differing.iter().map(|n| settings[*n].as_str()).filter(|s| !s.is_empty());
            let name = std::iter::once(words.as_str()).chain(shown).collect::<Vec<_>>().join(" ");
            curves.entry(name).or_default().push(point);
        }
        for (name, points) in curves {
            // A curve may change its data path from size to size, but has one at each size.
            let sizes: BTreeSet<(&str, usize)> = points.iter().map(|p| (&*p.run, p.result.size)).collect();
            let by_path = sizes.len() < points.len();
            for point in points {
                let r = &point.result;
                let path =
                    if by_path && r.run.layout.as_ref() != Some(&r.data_path) && !r.data_path.is_empty() {
                        format!(" {}", r.data_path)
                    } else {
                        String::new()
                    };
                insert(&mut named, format!("{name}{path}"), point);
            }
        }
    }
    named
}

fn insert<'a>(named: &mut BTreeMap<String, ByRun<'a>>, name: String, point: &'a Point) {
    let (run, size) = (point.run.as_str(), point.result.size);
    let again = (2..).map(|n| format!("{name} #{n}"));
    let is_free = |name: &String| {
        named.get(name).and_then(|by_run| by_run.get(run)).is_none_or(|curve| !curve.contains_key(&size))
    };
    if let Some(free) = std::iter::once(name.clone()).chain(again).find(is_free) {
        named.entry(free).or_default().entry(run).or_default().insert(size, point.value());
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

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ucx-perftest-plot-{}-{name}", std::process::id()))
    }

    #[test]
    fn every_curve_has_its_label_and_every_point_its_mark() {
        let (saved, out) = (file("base.json"), file("out.svg"));
        let lines =
            [line("tag_lat", 8, 0.5, 0.0), line("tag_lat", 64, 0.6, 0.0), line("tag_bw", 8, 0.0, 99.0)];
        std::fs::write(&saved, lines.join("\n")).unwrap();
        // Neither a size nor a time of 0 has a logarithm.
        draw(&out, &[&saved], &[line("am_lat", 0, 0.0, 1.0)]).unwrap();
        let svg = std::fs::read_to_string(&out).unwrap();
        let name = saved.file_stem().unwrap().to_str().unwrap().to_owned();
        for text in [
            format!("tag latency, {name}"),
            format!("tag bandwidth, {name}"),
            "active message latency, this run".into(),
        ] {
            assert!(svg.contains(&text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 4, "{svg}");
        assert!(svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        std::fs::remove_file(saved).unwrap();
        std::fs::remove_file(out).unwrap();
    }

    #[test]
    fn a_test_has_one_colour_and_a_run_one_dash_pattern() {
        let of = |program: &str, test: &str| {
            let line = line(test, 8, 1.0, 1000.0)
                .replace("\"something\":[1]", &format!("\"program\":\"{program}\""));
            point("r", &line).unwrap()
        };
        let programs = ["this library", "UCX 1.13.1"];
        let points: Vec<Point> =
            programs.iter().flat_map(|program| ["tag_lat", "tag_bw"].map(|test| of(program, test))).collect();
        let panels = panels(&points);
        let curves: Vec<(&str, usize, usize)> = panels
            .iter()
            .flat_map(|panel| &panel.curves)
            .map(|curve| (&*curve.label, curve.color, curve.dash))
            .collect();
        let want = [
            ("tag latency, this library", 0, 0),
            ("tag latency, UCX 1.13.1", 0, 1),
            ("tag bandwidth, this library", 0, 0),
            ("tag bandwidth, UCX 1.13.1", 0, 1),
        ];
        assert_eq!(curves, want);
        let [(size, value)] = panels[1].curves[0].points[..] else { panic!("one point") };
        assert!(size == 8.0 && (value - 1.048576).abs() < 1e-9, "{value} GB/s");
    }

    #[test]
    fn settings_that_differ_give_another_curve() {
        let with = |more: &str| line("put_bw", 8, 0.0, 1.0).replace("\"something\":[1]", more);
        let names = |lines: &[String]| {
            let points: Vec<Point> = lines.iter().map(|line| point("r", line).unwrap()).collect();
            name_points(points.iter().collect()).into_keys().collect::<Vec<_>>()
        };
        let (short, zcopy) =
            ("\"window\":32,\"data_path\":\"short\"", "\"window\":32,\"data_path\":\"zcopy\"");
        let own = "\"window\":32,\"data_path\":\"short\",\"run\":{\"target\":\"own\",\"threads\":2}";
        assert_eq!(names(&[with(short)]), ["put bandwidth"]);
        assert_eq!(names(&[with(short), with(zcopy)]), ["put bandwidth short", "put bandwidth zcopy"]);
        let longer = with(zcopy).replace("\"size\":8", "\"size\":9");
        assert_eq!(names(&[with(short), longer]), ["put bandwidth"], "another path at another size");
        assert_eq!(
            names(&[with(short), with(&short.replace("32", "1"))]),
            ["put bandwidth -O 1", "put bandwidth -O 32"]
        );
        assert_eq!(names(&[with(short), with(own)]), ["put bandwidth -T 0", "put bandwidth -T 2 --own"]);
        assert_eq!(
            names(&[with(short), with(short), with(short)]),
            ["put bandwidth short", "put bandwidth short #2", "put bandwidth short #3"]
        );
        let ucp = with(short).replace("put_bw", "ucp_put_bw").replace("posix", "efa");
        assert_eq!(
            names(&[with(short), ucp]),
            ["put bandwidth put_bw posix", "put bandwidth ucp_put_bw efa"]
        );
    }

    #[test]
    fn files_of_one_name_are_told_apart() {
        assert_eq!(names(&["d1/r.json", "d2/r.json", "d1/s.json"]), ["d1/r.json", "d2/r.json", "s"]);
        assert_eq!(names(&["this run.json"]), ["this run.json"]);
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
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

    #[test]
    fn a_file_that_is_not_svg_is_refused() {
        for good in ["x.svg", "a/b.SVG"] {
            assert!(svg_path(good.into()).is_ok());
        }
        for bad in ["x.png", "x", ".svg"] {
            let text = svg_path(bad.into()).unwrap_err();
            assert!(text.ends_with("plots are written as SVG: name a file that ends with .svg"), "{text}");
        }
    }
}
