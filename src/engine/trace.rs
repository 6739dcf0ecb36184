//! Recording of every stage's tensors, so that any of them can be compared with the reference.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Shape, Tensor};

use crate::error::{Error, Result};

/// Writes `<folder>/<name>.safetensors`, each with one tensor of the same name; or nothing at all.
#[derive(Debug, Default)]
pub struct Trace {
    folder: Option<PathBuf>,
    /// Stages that come in steps are collected here and written at the end.
    steps: Mutex<HashMap<&'static str, Vec<Tensor>>>,
}

impl Trace {
    /// Records nothing and costs nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Records into `folder`, which is made if need be.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn into(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
        Ok(Self { folder: Some(folder.to_owned()), steps: Mutex::default() })
    }

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.folder.is_some()
    }

    /// Records a tensor under `name`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn tensor(&self, name: &'static str, tensor: &Tensor) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
        let path = folder.join(format!("{name}.safetensors"));
        Ok(candle_core::safetensors::save(&HashMap::from([(name, tensor)]), path)?)
    }

    /// Records floats.
    ///
    /// # Errors
    /// As [`Self::tensor`].
    pub fn floats(&self, name: &'static str, values: &[f32], shape: impl Into<Shape>) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        self.tensor(name, &Tensor::from_slice(values, shape.into(), &Device::Cpu)?)
    }

    /// Records ids as `(1, n)`, i64.
    ///
    /// # Errors
    /// As [`Self::tensor`].
    pub fn ids(&self, name: &'static str, ids: &[u32]) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let wide: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
        self.tensor(name, &Tensor::from_vec(wide, (1, ids.len()), &Device::Cpu)?)
    }

    /// Adds one row to a stage that comes in steps; [`Self::finish`] writes them stacked.
    ///
    /// # Errors
    /// If the tensor cannot be brought to the CPU.
    pub fn step(&self, name: &'static str, row: &Tensor) -> Result<()> {
        if self.is_on() {
            let row = row.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            self.steps.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default().push(row);
        }
        Ok(())
    }

    /// Writes what came in steps.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish(&self) -> Result<()> {
        let steps = std::mem::take(&mut *self.steps.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, rows) in steps {
            self.tensor(name, &Tensor::stack(&rows, 0)?)?;
        }
        Ok(())
    }
}
