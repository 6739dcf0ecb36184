//! `myna fetch`: get a released model, whole and checked; without a name, which there are.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::job::interruption;
use super::report::{print_json, print_line, print_note};
use crate::download::{Hub, Release, catalog, fetch, gigabytes, models_folder, release};

/// Time between two lines about how far it is.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Options of `myna fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// english, multilingual-v2, multilingual-v3, turbo or nano; without a name, they are listed.
    #[arg(value_parser = parse_release)]
    name: Option<String>,
    /// Folder of all models [default: where Myna looks for them by name].
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A released model as it is listed. Names are stable.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    title: &'a str,
    about: &'a str,
    repo: &'a str,
    revision: &'a str,
    bytes: u64,
    here: bool,
    folder: PathBuf,
}

fn parse_release(name: &str) -> Result<String, String> {
    let names = || catalog().iter().map(|release| release.name.as_str()).collect::<Vec<_>>().join(", ");
    release(name).map(|found| found.name.clone()).ok_or_else(|| format!("there are {}", names()))
}

/// Runs the command.
pub fn run(args: &FetchArgs) -> anyhow::Result<()> {
    let models =
        args.to.clone().or_else(models_folder).context("this system has no folder for models; name one with --to")?;
    let listed = |release: &'static Release| Listed {
        name: &release.name,
        title: &release.title,
        about: &release.about,
        repo: &release.repo,
        revision: &release.revision,
        bytes: release.bytes(),
        here: release.is_there(&models),
        folder: release.folder(&models),
    };
    let Some(wanted) = args.name.as_deref().and_then(release) else {
        let all: Vec<Listed<'_>> = catalog().iter().map(listed).collect();
        if args.json {
            return print_json(&serde_json::json!({ "models": all }));
        }
        let line = |one: &Listed<'_>| {
            let here = if one.here { "here" } else { "" };
            format!("{:<16} {:>7}  {:<5} {}: {}", one.name, gigabytes(one.bytes), here, one.title, one.about)
        };
        return print_line(&all.iter().map(line).collect::<Vec<_>>().join("\n"));
    };
    let cancel = interruption()?;
    let (total, begun) = (wanted.bytes(), Instant::now());
    let (mut first, mut said) = (None, None::<Instant>);
    let folder = fetch(wanted, &models, &Hub::of_system(), &cancel, &mut |bytes| {
        let first = *first.get_or_insert(bytes);
        if said.is_none_or(|at| at.elapsed() >= BETWEEN_LINES) && bytes < total && std::io::stderr().is_terminal() {
            said = Some(Instant::now());
            let rate = (bytes - first) as f64 / begun.elapsed().as_secs_f64().max(1e-3);
            print_note(&format!("{} of {}, {:.1} MB/s", gigabytes(bytes), gigabytes(total), rate / 1e6));
        }
    })?;
    if args.json { print_json(&listed(wanted)) } else { print_line(&folder.display().to_string()) }
}
