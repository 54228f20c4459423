//! Batch files: one test a line, first word its label, the rest its options; `#` starts a comment line.
//! Several files are combined: each line of the first with each of the second, labels joined by `/`.

use std::path::Path;

use crate::cli::{self, TestArgs};
use crate::fail::Failure;
use crate::spec::Spec;

/// Most batch files at once.
const MAX_FILES: usize = 32;

/// The measurements of the command line and all batch files together.
pub fn specs(args: &TestArgs, files: &[impl AsRef<Path>]) -> Result<Vec<Spec>, Failure> {
    if files.len() > MAX_FILES {
        return Err(Failure::Usage(format!("-b: at most {MAX_FILES} files")));
    }
    if files.is_empty() {
        return args.specs(None);
    }
    let mut all: Vec<(String, TestArgs)> = vec![(String::new(), args.clone())];
    for file in files {
        let lines = read(file.as_ref())?;
        let join = |(label, base): &(String, TestArgs)| {
            let mut out = Vec::with_capacity(lines.len());
            for (name, options) in &lines {
                let label = if label.is_empty() { name.clone() } else { format!("{label}/{name}") };
                out.push((label, options.clone().over(base)));
            }
            out
        };
        all = all.iter().flat_map(join).collect();
    }
    let mut specs = Vec::new();
    for (label, args) in all {
        specs.extend(args.specs(Some(&label)).map_err(|e| Failure::Usage(format!("{label}: {e}")))?);
    }
    Ok(specs)
}

fn read(file: &Path) -> Result<Vec<(String, TestArgs)>, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::Usage(format!("-b: cannot read {name}: {}", e.kind())))?;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace().map(str::to_owned);
        let Some(label) = words.next().filter(|w| !w.starts_with('#')) else { continue };
        let words: Vec<String> = words.collect();
        let options = cli::read_test_args(&words)
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
    use std::path::PathBuf;

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ucx-perftest-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn files_multiply_and_labels_join() {
        let tests = file("tests", "# what\nlat -t tag_lat\n\nbw -t tag_bw -n 7\n");
        let sizes = file("sizes", "8 -s 8\n1k -s 1k\n");
        let base = TestArgs { iters: Some(500), ..TestArgs::default() };
        let all = specs(&base, &[&tests, &sizes]).unwrap();
        let labels: Vec<_> = all.iter().map(|s| s.label.as_deref().unwrap()).collect();
        assert_eq!(labels, ["lat/8", "lat/1k", "bw/8", "bw/1k"]);
        assert_eq!((all[1].size(), all[1].iters, all[2].iters), (1024, 500, 7));
        for path in [tests, sizes] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn errors_name_file_and_line() {
        let bad = file("bad", "a -t tag_lat\nb -t nothing\n");
        let text = specs(&TestArgs::default(), &[&bad]).unwrap_err().to_string();
        assert!(text.contains("line 2: -t: test 'nothing' is unknown"), "{text}");
        std::fs::write(&bad, "# nothing\n").unwrap();
        let text = specs(&TestArgs::default(), &[&bad]).unwrap_err().to_string();
        assert!(text.ends_with("has no tests"), "{text}");
        std::fs::remove_file(&bad).unwrap();
        let text = specs(&TestArgs::default(), &[&bad]).unwrap_err().to_string();
        assert!(text.starts_with("-b: cannot read ") && text.ends_with("entity not found"), "{text}");
    }
}
