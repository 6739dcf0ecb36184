//! Matrices kept on disk as the products want them, so that a large model need not be converted at every start.
//!
//! The first load of a weight file at a precision writes its packed matrices one after the other into a file of a cache
//! folder; the next reads them from there and leaves the originals alone. The file's name says what it was made of: the
//! length, time and tensors of the weight file, what it was loaded as, and [`LAYOUT`]. Matrices are looked up by name,
//! shape and precision, and each has a checksum: what does not fit is made anew. Nothing that goes wrong here is an error;
//! loading then takes as long as without a cache.
//!
//! ```text
//! values of all matrices | index (JSON) | checksum of the index | its length | "MYNAPACK"     little-endian
//! ```
//!
//! It is read and not mapped: a file that shrinks under a map kills the program, and reads end in memory of larger pages.

use std::collections::BTreeMap;
use std::fs::{File, FileTimes};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::files::AtomicFile;
use crate::kernels::matrix::Matrix;
use crate::protocol::Precision;

/// Number of the layout of packed matrices and of this file: to be raised whenever either changes.
const LAYOUT: u32 = 1;
const MAGIC: &[u8; 8] = b"MYNAPACK";
const EXTENSION: &str = "pack";
/// Most bytes of all packs together; those used longest ago go first.
const MOST_BYTES: u64 = 8 << 30;
/// A longer index is a lie.
const MOST_INDEX_BYTES: u64 = 64 << 20;

/// How a layer wants a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Form {
    pub outputs: usize,
    pub inputs: usize,
    pub precision: Precision,
    pub wide: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    form: Form,
    offset: u64,
    checksum: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    /// Fingerprint of the weight file.
    fingerprint: String,
    entries: BTreeMap<String, Entry>,
}

/// The packed matrices of one weight file: read if they are there, else written as they are made.
pub(crate) struct Packs(Mutex<State>);

enum State {
    Reading {
        path: PathBuf,
        file: File,
        index: Index,
    },
    Writing {
        file: AtomicFile,
        index: Index,
        at: u64,
    },
    /// Something went wrong, or it is done.
    Off,
}

impl Packs {
    /// The packs in `folder` of the weight file at `path`, which has tensors of these `shapes` and is loaded as `usage`
    /// says.
    pub(super) fn open(folder: &Path, path: &Path, shapes: &BTreeMap<String, Vec<usize>>, usage: &str) -> Self {
        Self(Mutex::new(Self::begin(folder, path, shapes, usage).unwrap_or(State::Off)))
    }

    fn begin(folder: &Path, path: &Path, shapes: &BTreeMap<String, Vec<usize>>, usage: &str) -> Option<State> {
        if cfg!(target_endian = "big") {
            return None;
        }
        let pack = folder.join(file_name(path, shapes, usage)?);
        if let Some((file, index)) = read_index(&pack) {
            return Some(State::Reading { path: pack, file, index });
        }
        std::fs::create_dir_all(folder).ok()?;
        let file = AtomicFile::create(&pack).ok()?;
        Some(State::Writing { file, index: Index::default(), at: 0 })
    }

    /// The fingerprint of the weight file, where a finished pack knows it.
    pub(super) fn fingerprint(&self) -> Option<String> {
        match &*self.state() {
            State::Reading { index, .. } => Some(index.fingerprint.clone()),
            _ => None,
        }
    }

    /// The matrix `name`, if it is here. A pack that turns out to be damaged is removed, so that the next load makes a new
    /// one.
    pub(crate) fn read(&self, name: &str, form: Form) -> Option<Matrix> {
        let State::Reading { path, file, index } = &mut *self.state() else { return None };
        let entry = index.entries.get(&key(name, form)).filter(|entry| entry.form == form)?;
        let mut checksum = crc32fast::Hasher::new();
        let matrix = file.seek(SeekFrom::Start(entry.offset)).and_then(|_| {
            Matrix::read(form, |part| {
                file.read_exact(part)?;
                checksum.update(part);
                Ok(())
            })
        });
        let matrix = matrix.ok().filter(|_| checksum.finalize() == entry.checksum);
        if matrix.is_none() {
            let _ = std::fs::remove_file(path);
        }
        matrix
    }

    /// Keeps a matrix that was not there, if a pack is being written.
    pub(crate) fn write(&self, name: &str, form: Form, matrix: &Matrix) {
        let mut state = self.state();
        let State::Writing { file, index, at } = &mut *state else { return };
        let mut checksum = crc32fast::Hasher::new();
        let offset = *at;
        let written = matrix.parts().into_iter().try_for_each(|part| {
            checksum.update(part);
            *at += part.len() as u64;
            file.file().write_all(part)
        });
        index.entries.insert(key(name, form), Entry { form, offset, checksum: checksum.finalize() });
        if written.is_err() {
            *state = State::Off;
        }
    }

    /// Whether all that a finished pack was made of has been checked before.
    pub(super) fn is_finished(&self) -> bool {
        matches!(*self.state(), State::Reading { .. })
    }

    /// Puts a pack that was written in its place, and makes room for it.
    pub(super) fn finish(&self, fingerprint: &str) {
        let State::Writing { mut file, mut index, .. } = std::mem::replace(&mut *self.state(), State::Off) else {
            return;
        };
        fingerprint.clone_into(&mut index.fingerprint);
        let path = file.path().to_owned();
        let done = write_index(file.file(), &index).is_ok() && file.commit().is_ok();
        if done && let Some(folder) = path.parent() {
            keep_within(folder, &path, MOST_BYTES);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(name: &str, form: Form) -> String {
    format!("{name} {}", form.precision.name())
}

/// The name of the pack; nothing if the weight file cannot be told from another.
fn file_name(path: &Path, shapes: &BTreeMap<String, Vec<usize>>, usage: &str) -> Option<String> {
    let about = std::fs::metadata(path).ok()?;
    let changed = about.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let place = std::fs::canonicalize(path).ok()?;
    let mut hash = Sha256::new();
    hash.update(format!("{LAYOUT} {} {} {} {usage}\n", place.display(), about.len(), changed.as_nanos()));
    for (name, shape) in shapes {
        hash.update(format!("{name} {shape:?}\n"));
    }
    let hash: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{}-{hash}.{EXTENSION}", path.file_stem()?.to_string_lossy()))
}

fn write_index(file: &mut File, index: &Index) -> std::io::Result<()> {
    let text = serde_json::to_vec(index)?;
    file.write_all(&text)?;
    file.write_all(&crc32fast::hash(&text).to_le_bytes())?;
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(MAGIC)
}

/// Opens a pack; nothing if it is not there or not whole.
fn read_index(path: &Path) -> Option<(File, Index)> {
    const TAIL: u64 = 4 + 8 + 8;
    let mut file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.checked_sub(TAIL)?)).ok()?;
    let mut tail = [0u8; TAIL as usize];
    file.read_exact(&mut tail).ok()?;
    let (checksum, rest) = tail.split_first_chunk::<4>()?;
    let (length, magic) = rest.split_first_chunk::<8>()?;
    let length = u64::from_le_bytes(*length);
    if magic != MAGIC || length > MOST_INDEX_BYTES {
        return None;
    }
    file.seek(SeekFrom::Start((size - TAIL).checked_sub(length)?)).ok()?;
    let mut text = vec![0u8; length as usize];
    file.read_exact(&mut text).ok()?;
    if crc32fast::hash(&text) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let index = serde_json::from_slice(&text).ok()?;
    // Says when it was used last; without that, room is made in order of age.
    let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
    Some((file, index))
}

/// Removes the packs used longest ago until all together are no larger than `most`; `newest` stays.
fn keep_within(folder: &Path, newest: &Path, most: u64) {
    let Ok(files) = std::fs::read_dir(folder) else { return };
    let about = |path: PathBuf| {
        let about = std::fs::metadata(&path).ok()?;
        Some((about.modified().ok()?, about.len(), path))
    };
    let packs = files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == EXTENSION));
    let mut packs: Vec<_> = packs.filter_map(about).collect();
    packs.sort();
    let mut total: u64 = packs.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in packs.into_iter().filter(|(_, _, path)| path != newest) {
        if total <= most {
            return;
        }
        if std::fs::remove_file(path).is_ok() {
            total -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernels::testing::pseudo;

    fn form(precision: Precision) -> Form {
        Form { outputs: 33, inputs: 10, precision, wide: precision == Precision::Int8 }
    }

    fn matrix(precision: Precision) -> Matrix {
        Matrix::pack_for(&pseudo(330, 7), 33, 10, precision, form(precision).wide)
    }

    struct Place {
        folder: tempfile::TempDir,
        shapes: BTreeMap<String, Vec<usize>>,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("t3.safetensors"), b"weights").unwrap();
            Self { folder, shapes: BTreeMap::from([("a".to_owned(), vec![33, 10])]) }
        }

        fn cache(&self) -> PathBuf {
            self.folder.path().join("cache")
        }

        fn open(&self, usage: &str) -> Packs {
            Packs::open(&self.cache(), &self.folder.path().join("t3.safetensors"), &self.shapes, usage)
        }

        fn fill(&self, usage: &str) {
            let packs = self.open(usage);
            for precision in Precision::ALL {
                assert!(packs.read("a", form(precision)).is_none());
                packs.write("a", form(precision), &matrix(precision));
            }
            packs.finish("print");
        }

        fn files(&self) -> Vec<PathBuf> {
            let mut all: Vec<_> = std::fs::read_dir(self.cache()).unwrap().map(|file| file.unwrap().path()).collect();
            all.sort();
            all
        }
    }

    #[test]
    fn matrices_come_back_bit_by_bit_at_every_precision() {
        let place = Place::new();
        place.fill("int8");
        let packs = place.open("int8");
        assert_eq!(packs.fingerprint().as_deref(), Some("print"));
        for precision in Precision::ALL {
            assert_eq!(packs.read("a", form(precision)), Some(matrix(precision)), "{precision:?}");
        }
        assert!(packs.read("b", form(Precision::F32)).is_none());
        let narrower = Form { inputs: 9, ..form(Precision::F32) };
        assert!(packs.read("a", narrower).is_none(), "another shape");
    }

    #[test]
    fn other_weights_and_other_uses_have_packs_of_their_own() {
        let place = Place::new();
        place.fill("int8");
        assert!(!place.open("f16").is_finished());
        std::fs::write(place.folder.path().join("t3.safetensors"), b"other weights").unwrap();
        assert!(!place.open("int8").is_finished());
    }

    #[test]
    fn what_is_damaged_is_made_anew_and_what_is_not_finished_leaves_nothing() {
        let place = Place::new();
        place.fill("int8");
        let file = place.files().remove(0);
        let whole = std::fs::read(&file).unwrap();
        for bad in [Vec::new(), whole[..whole.len() / 2].to_vec(), whole[..whole.len() - 1].to_vec(), vec![7; 100]] {
            std::fs::write(&file, bad).unwrap();
            assert!(!place.open("int8").is_finished());
        }
        // One value of the first matrix: only that one is not believed.
        let mut bent = whole.clone();
        bent[5] ^= 1;
        std::fs::write(&file, bent).unwrap();
        let packs = place.open("int8");
        let found = Precision::ALL.map(|precision| packs.read("a", form(precision)).is_some());
        assert_eq!(found, [false, true, true, true]);
        assert!(place.files().is_empty(), "a damaged pack stays");
        std::fs::write(&file, whole).unwrap();
        drop(place.open("another"));
        assert_eq!(place.files(), [file]);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let place = Place::new();
        std::fs::write(place.cache(), b"a file in its place").unwrap();
        place.fill("int8");
        assert!(!place.open("int8").is_finished());
    }

    #[test]
    fn the_packs_used_longest_ago_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (i, name) in ["b.pack", "c.pack", "a.pack", "other.txt"].into_iter().enumerate() {
            let file = File::create(at(name)).unwrap();
            file.set_len(100).unwrap();
            let time = UNIX_EPOCH + std::time::Duration::from_secs(1000 + i as u64);
            file.set_times(FileTimes::new().set_modified(time)).unwrap();
        }
        keep_within(folder.path(), &at("a.pack"), 250);
        assert!(!at("b.pack").exists() && at("c.pack").exists() && at("a.pack").exists());
        keep_within(folder.path(), &at("a.pack"), 0);
        assert!(!at("c.pack").exists() && at("a.pack").exists() && at("other.txt").exists());
    }
}
