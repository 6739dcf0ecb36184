//! Writing files so that nobody ever finds half of one.

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// A file that grows under a temporary name beside its path and gets its own name when it is whole: readers see the old
/// file or the whole new one. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct AtomicFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl AtomicFile {
    /// Begins a file at `path`.
    ///
    /// # Errors
    /// If the folder does not exist or is not writable; `path` is then as it was.
    pub fn create(path: &Path) -> Result<Self> {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            return Err(Error::input(format!(
                "{}: the folder {} does not exist; create it first",
                path.display(),
                folder.display()
            )));
        }
        if path.is_dir() {
            return Err(Error::input(format!("{} is a folder; give a file name", path.display())));
        }
        let file = NamedTempFile::new_in(folder).map_err(|e| Error::io(path, e))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// What is written to.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the whole file in its place.
    ///
    /// # Errors
    /// If the disk is full or the folder is gone; what was at the path is then as it was.
    pub fn commit(self) -> Result<()> {
        let Self { file, path } = self;
        file.as_file().sync_all().map_err(|e| Error::io(&path, e))?;
        #[cfg(unix)]
        set_ordinary_permissions(file.path());
        file.persist(&path).map_err(|e| Error::io(&path, e.error))?;
        Ok(())
    }
}

/// Writes an [`AtomicFile`] in one go.
///
/// # Errors
/// If the folder does not exist, is not writable, or the disk is full; `path` is then as it was.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    fill(file.file()).map_err(|e| Error::io(path, e))?;
    file.commit()
}

/// Temporary files are private; what the user asked for is an ordinary file.
#[cfg(unix)]
fn set_ordinary_permissions(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    // A file system without permissions refuses this; the file is good all the same.
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        write_atomically(&path, |f| f.write_all(b"old")).unwrap();
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = write_atomically(&path, |f| f.write_all(b"half").and(Err(full()))).unwrap_err();
        assert!(error.to_string().contains("a.txt"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left behind");
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = write_atomically(Path::new("/no/such/folder/x.wav"), |_| Ok(())).unwrap_err();
        assert!(error.is_bad_input() && error.to_string().contains("/no/such/folder"), "{error}");
    }
}
