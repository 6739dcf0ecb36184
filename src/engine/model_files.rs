//! Where the files of a model are: a folder of the user's, or the program itself.

use std::path::{Path, PathBuf};

use candle_core::Device;

use crate::error::{Error, Result};
use crate::protocol::ModelSource;
use crate::variant::Variant;
use crate::weights::Weights;

/// The files of the small model inside the program.
static EMBEDDED: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../../models/embedded/config.json")),
    ("t3_cfg.safetensors", include_bytes!("../../models/embedded/t3_cfg.safetensors")),
    ("s3gen_meanflow.safetensors", include_bytes!("../../models/embedded/s3gen_meanflow.safetensors")),
    ("ve.safetensors", include_bytes!("../../models/embedded/ve.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/embedded/tokenizer.json")),
];

/// A set of named files.
#[derive(Debug, Clone)]
pub(crate) enum ModelFiles {
    /// In a folder.
    Folder(PathBuf),
    /// Inside the program.
    Embedded,
}

impl ModelFiles {
    /// The files of `source`.
    pub(crate) fn of(source: &ModelSource) -> Result<Self> {
        match source {
            ModelSource::Embedded => Ok(Self::Embedded),
            ModelSource::Folder(path) if path.is_dir() => Ok(Self::Folder(path.clone())),
            ModelSource::Folder(path) if path.exists() => {
                Err(Error::model(path, "not a folder; give the folder that holds the model's files"))
            }
            ModelSource::Folder(path) => Err(Error::model(path, "there is no such folder")),
        }
    }

    /// Path of a file, for messages and for reading.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.join(name),
            Self::Embedded => Path::new("embedded").join(name),
        }
    }

    fn embedded(name: &str) -> Option<&'static [u8]> {
        EMBEDDED.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes)
    }

    /// Whether the file is there.
    pub(crate) fn contains(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(name).is_file(),
            Self::Embedded => Self::embedded(name).is_some(),
        }
    }

    /// The whole of a small file; nothing if it is not there.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        if !self.contains(name) {
            return Ok(None);
        }
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                std::fs::read(&path).map(Some).map_err(|e| Error::io(path, e))
            }
            Self::Embedded => Ok(Self::embedded(name).map(<[u8]>::to_vec)),
        }
    }

    /// Size of the first of `names` that is there; 0 for none.
    pub(crate) fn bytes(&self, names: &[&str]) -> u64 {
        let Some(name) = names.iter().find(|name| self.contains(name)) else { return 0 };
        match self {
            Self::Folder(folder) => std::fs::metadata(folder.join(name)).map_or(0, |about| about.len()),
            Self::Embedded => Self::embedded(name).map_or(0, |bytes| bytes.len() as u64),
        }
    }

    /// Weights out of the first of `names` that is there.
    pub(crate) fn weights(&self, names: &[&str], device: &Device) -> Result<Weights> {
        let name = names.iter().find(|name| self.contains(name)).ok_or_else(|| {
            Error::model(self.path(""), format!("{} is missing; fetch it into this folder", names.join(" or ")))
        })?;
        match self {
            Self::Folder(folder) => Weights::open(&folder.join(name), device),
            Self::Embedded => {
                let bytes = Self::embedded(name).ok_or_else(|| Error::internal(format!("no embedded {name}")))?;
                Weights::from_static(&self.path(name), bytes, device)
            }
        }
    }

    /// The variants whose T3 weights are there.
    pub(crate) fn variants(&self) -> Vec<Variant> {
        Variant::ALL.into_iter().filter(|v| self.contains(v.spec().t3_file)).collect()
    }

    /// The variant to load: the one asked for, or the only one.
    pub(crate) fn choose(&self, wanted: Option<Variant>) -> Result<Variant> {
        let found = self.variants();
        if let Some(wanted) = wanted {
            if found.contains(&wanted) {
                return Ok(wanted);
            }
            let file = wanted.spec().t3_file;
            let others: Vec<_> = found.iter().map(|v| v.spec().name).collect();
            let hint =
                if others.is_empty() { String::new() } else { format!("; this folder holds {}", others.join(", ")) };
            return Err(Error::model(self.path(file), format!("missing, so this is no {wanted} model{hint}")));
        }
        match found.as_slice() {
            [one] => Ok(*one),
            [] => {
                let files: Vec<_> = Variant::ALL.iter().map(|v| v.spec().t3_file).collect();
                Err(Error::model(self.path(""), format!("no model: none of {} is here", files.join(", "))))
            }
            [_, ..] => {
                let names: Vec<_> = found.iter().map(|v| v.spec().name).collect();
                Err(Error::model(
                    self.path(""),
                    format!("several models are here; choose one of {} as the variant", names.join(", ")),
                ))
            }
        }
    }
}
