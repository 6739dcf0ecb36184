//! `myna inspect`: what a model folder holds and what it lacks.

use std::path::PathBuf;

use clap::Args;
use myna_engine::Error;
use myna_engine::inspect::inspect;

use super::report::{print_json, print_line};

/// Options of `myna inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The model folder.
    folder: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command; a folder that cannot be loaded is bad input.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let found = inspect(&args.folder)?;
    if args.json {
        print_json(&found)?;
    } else {
        print_line(&found.to_string())?;
    }
    if found.variants.iter().any(|v| v.complete) {
        return Ok(());
    }
    Err(Error::model(&args.folder, "no model in this folder can be loaded").into())
}
