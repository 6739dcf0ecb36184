//! Fetching the released models: which there are, where they come from, and getting them whole.
//!
//! `models/catalog.json` pins every file by commit, size and SHA-256, so that what arrives is what was meant. A file is
//! fetched under another name and renamed when its hash is right; what was fetched before an interruption is kept and goes on.

mod transfer;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use myna_engine::Error;
use myna_engine::protocol::CancelToken;
use serde::{Deserialize, Serialize};

pub use transfer::Hub;

const CATALOG: &str = include_str!("../../../models/catalog.json");

/// A released model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Its name on the command line.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// A line about it.
    pub about: String,
    /// Owner and name of the repository.
    pub repo: String,
    /// Commit in it.
    pub revision: String,
    /// What is fetched.
    pub files: Vec<ReleaseFile>,
}

/// A file of a released model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseFile {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in hex.
    pub sha256: String,
}

/// All released models, the quickest first.
pub fn catalog() -> &'static [Release] {
    static RELEASES: OnceLock<Vec<Release>> = OnceLock::new();
    // A test reads it; it is part of the program.
    RELEASES.get_or_init(|| serde_json::from_str(CATALOG).unwrap_or_default())
}

/// The released model of this name.
pub fn release(name: &str) -> Option<&'static Release> {
    catalog().iter().find(|release| release.name == name)
}

/// Where this system keeps what is fetched; `None` where it has no such place.
pub fn models_folder() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "myna").map(|dirs| dirs.data_dir().join("models"))
}

impl Release {
    /// Size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Its folder in the folder of all models.
    pub fn folder(&self, models: &Path) -> PathBuf {
        models.join(&self.name)
    }

    /// Whether all of it is there.
    pub fn is_there(&self, models: &Path) -> bool {
        let folder = self.folder(models);
        self.files.iter().all(|file| file.is_there(&folder))
    }
}

impl ReleaseFile {
    /// Whether it is there; its hash was right when it got its name.
    fn is_there(&self, folder: &Path) -> bool {
        folder.join(&self.name).metadata().is_ok_and(|found| found.is_file() && found.len() == self.bytes)
    }
}

/// Gigabytes for people.
pub fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Fetches what is not there yet; the folder of the model. `progress` hears how many bytes are there.
///
/// # Errors
/// [`Error::Cancelled`] if asked to stop; otherwise says what was in the way: no connection, no room, a damaged file.
pub fn fetch(
    release: &Release,
    models: &Path,
    hub: &Hub,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(u64),
) -> Result<PathBuf> {
    let folder = release.folder(models);
    std::fs::create_dir_all(&folder).map_err(|e| Error::io(&folder, e))?;
    let missing: Vec<&ReleaseFile> = release.files.iter().filter(|file| !file.is_there(&folder)).collect();
    room_for(&missing, &folder)?;
    let mut done = release.bytes() - missing.iter().map(|file| file.bytes).sum::<u64>();
    for file in missing {
        progress(done);
        if !borrow(file, models, &folder) {
            hub.fetch(release, file, &folder, cancel, &mut |bytes| progress(done + bytes))
                .with_context(|| format!("{} of {}", file.name, release.title))?;
        }
        done += file.bytes;
    }
    progress(done);
    Ok(folder)
}

/// Takes a file that another model brought already, without copying it where the disk can do that.
fn borrow(file: &ReleaseFile, models: &Path, folder: &Path) -> bool {
    let others = catalog().iter().filter(|other| other.files.contains(file));
    let mut known = others.map(|other| other.folder(models)).filter(|other| file.is_there(other));
    let here = folder.join(&file.name);
    known.any(|other| std::fs::hard_link(other.join(&file.name), &here).is_ok())
}

fn room_for(missing: &[&ReleaseFile], folder: &Path) -> Result<()> {
    let begun = |file: &&ReleaseFile| folder.join(file.part_name()).metadata().map_or(0, |part| part.len());
    let needed: u64 = missing.iter().map(|file| file.bytes.saturating_sub(begun(file))).sum();
    // Where the system does not say how much room there is, the disk will.
    let Ok(room) = fs4::available_space(folder) else { return Ok(()) };
    if needed > room {
        bail!(Error::input(format!(
            "{}: {} are needed and {} are free; make room, or choose another disk with --to",
            folder.display(),
            gigabytes(needed),
            gigabytes(room)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
