//! Writing files so that nobody ever finds half of one.

use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// Writes a file under a temporary name beside `path`, then renames it: readers see the old file or the whole new one.
///
/// # Errors
/// If the folder does not exist, is not writable, or the disk is full; `path` is then as it was.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut std::fs::File) -> std::io::Result<()>) -> Result<()> {
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
    let refused = |e: std::io::Error| Error::io(path, e);
    let mut file = NamedTempFile::new_in(folder).map_err(refused)?;
    fill(file.as_file_mut()).map_err(refused)?;
    file.flush().map_err(refused)?;
    file.as_file().sync_all().map_err(refused)?;
    #[cfg(unix)]
    set_ordinary_permissions(file.path());
    file.persist(path).map_err(|e| refused(e.error))?;
    Ok(())
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
