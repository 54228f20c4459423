//! Writes saved figures (`versus --save`) into the tables of documents. Started by `perf/figures`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Puts saved figures into the tables of documents.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where NAME.json are.
    folder: PathBuf,
    /// Markdown files with tables between `<!-- figures: NAME -->` and `<!-- /figures -->`.
    #[arg(required = true)]
    documents: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    for document in &args.documents {
        match perf::figure::fill_file(document, &args.folder) {
            Ok(kept) => kept.iter().for_each(|name| {
                ucs::stderr_line!(
                    "figures: {}: no new figures for '{name}': its table stays",
                    document.display()
                );
            }),
            Err(e) => {
                ucs::stderr_line!("figures: {}: {e}", document.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
