//! Batch files: one test per line, the label first, then options; `#` starts a comment. Several files are
//! combined: each line of the first with each line of the second, labels joined by `/`.

use std::path::Path;

use crate::cli::{self, LineArgs, TestArgs, TestEntry};
use crate::fail::Failure;
use crate::spec::{self, Banner};

const MAX_FILES: usize = 32;

/// The tests of the command line and all batch files. Unknown options and values are an error; a test that
/// cannot be run here becomes an entry with the reason, and the others run. `looped`: the run has `-l`.
pub fn entries(args: &TestArgs, files: &[impl AsRef<Path>], looped: bool) -> Result<Vec<TestEntry>, Failure> {
    if files.len() > MAX_FILES {
        return Err(Failure::Usage(format!("-b: at most {MAX_FILES} files")));
    }
    if files.is_empty() {
        let row = |spec: spec::Spec| TestEntry { label: spec.label(), spec: Ok(spec) };
        return Ok(args.specs(&[])?.into_iter().map(row).collect());
    }
    let mut all: Vec<(Vec<String>, LineArgs)> =
        vec![(Vec::new(), LineArgs { test: args.clone(), ..LineArgs::default() })];
    for file in files {
        let lines = read(file.as_ref())?;
        let join = |(names, base): &(Vec<String>, LineArgs)| {
            let mut out = Vec::with_capacity(lines.len());
            for (name, line) in &lines {
                let names = [&names[..], std::slice::from_ref(name)].concat();
                let test = line.test.clone().over(&base.test);
                let (quiet, loopback) = (line.quiet || base.quiet, line.loopback || base.loopback);
                out.push((names, LineArgs { test, quiet, loopback }));
            }
            out
        };
        all = all.iter().flat_map(join).collect();
    }
    let mut rows = Vec::new();
    for (names, line) in all {
        let these = match line.loopback && !looped {
            true => Err(Failure::Usage("-l of a batch line is for runs with -l".into())),
            false => line.test.entries(&names),
        };
        let from = rows.len();
        match these {
            Err(e) => rows.push(TestEntry { label: spec::label(&names, None), spec: Err(e) }),
            Ok(these) => rows.extend(these),
        }
        if line.quiet {
            let specs = rows[from..].iter_mut().filter_map(|row| row.spec.as_mut().ok());
            specs.for_each(|spec| spec.banner = Banner::Hidden);
        }
    }
    Ok(rows)
}

fn read(file: &Path) -> Result<Vec<(String, LineArgs)>, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::Usage(format!("-b: cannot read {name}: {}", e.kind())))?;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace().map(str::to_owned);
        let Some(label) = words.next().filter(|w| !w.starts_with('#')) else { continue };
        let words: Vec<String> = words.collect();
        let options = cli::read_line(&words)
            .map_err(|e| Failure::Usage(format!("-b: {name}, line {}: {e}", number + 1)))?;
        lines.push((label, options));
    }
    if lines.is_empty() {
        return Err(Failure::Usage(format!("-b: {name} has no tests")));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;
    use std::path::PathBuf;

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ucx-perftest-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn batch_files_are_combined_and_labels_joined() {
        let tests = file("tests", "# what\nlat -t tag_lat\n\nbw -t tag_bw -n 7\n");
        let sizes = file("sizes", "8 -s 8\n1k -s 1k\n");
        let base = TestArgs { iters: Some(500), ..TestArgs::default() };
        let rows = entries(&base, &[&tests, &sizes], false).unwrap();
        let all: Vec<Spec> = rows.into_iter().map(|row| row.spec.unwrap()).collect();
        let labels: Vec<_> = all.iter().map(|s| s.label().unwrap()).collect();
        assert_eq!(labels, ["lat/8", "lat/1k", "bw/8", "bw/1k"]);
        assert_eq!((all[1].size(), all[1].iters, all[2].iters), (1024, 500, 7));
        for path in [tests, sizes] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn batch_line_takes_every_option_of_ucx_perftest() {
        let lines = file(
            "letters",
            "a -t tag_lat -T 2 -R 99.5 -q -n 10 -s 16 -W 9 -O 4 -w 3 -i 0 -H 0 -C -I -M single -E poll -e -m host -U -V -z\n\
             b -t stream_bw -r recv -y -l\n\
             c -t am_lat -x posix -d memory -A thread -B -D bcopy -o -O 0\n\
             d -t tag_lat -m cuda,host -T 32 -L warp\n\
             e -t tag_lat -T 2:4\n\
             f -t tag_lat -efailover\n",
        );
        let all = entries(&TestArgs::default(), &[&lines], false).unwrap();
        let a = all[0].spec.as_ref().unwrap();
        assert_eq!((a.threads, a.rank, a.banner, a.window), (2, 99.5, Banner::Hidden, 4));
        let c = all[2].spec.as_ref().unwrap();
        assert_eq!((c.threads, c.rank, c.banner, c.window), (1, 50.0, Banner::Shown, 1));
        for (n, why) in [
            (1, "-l of a batch line is for runs with -l"),
            (3, "-m cuda: this program was built without CUDA"),
            (4, "-T: blocks of threads are for accelerators"),
            (5, "-efailover: "),
        ] {
            let text = all[n].spec.as_ref().unwrap_err().to_string();
            assert!(text.starts_with(why), "{text}");
        }
        let looped = entries(&TestArgs::default(), &[&lines], true).unwrap();
        assert!(looped[1].spec.as_ref().unwrap_err().to_string().starts_with("-y is for "));
        std::fs::remove_file(lines).unwrap();
    }

    #[test]
    fn errors_name_file_and_line() {
        let bad = file("bad", "a -t tag_lat\nb -t nothing\n");
        let text = entries(&TestArgs::default(), &[&bad], false).unwrap_err().to_string();
        assert!(text.contains("line 2: -t: test 'nothing' is unknown"), "{text}");
        std::fs::write(&bad, "# nothing\n").unwrap();
        let text = entries(&TestArgs::default(), &[&bad], false).unwrap_err().to_string();
        assert!(text.ends_with("has no tests"), "{text}");
        std::fs::remove_file(&bad).unwrap();
        let text = entries(&TestArgs::default(), &[&bad], false).unwrap_err().to_string();
        assert!(text.starts_with("-b: cannot read ") && text.ends_with("entity not found"), "{text}");
    }
}
