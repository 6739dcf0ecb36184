//! Recorded values for tests: `tests/fixtures/<name>.safetensors`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};

/// One fixture file. A missing file or tensor fails the test.
pub(crate) struct Fixture(std::collections::HashMap<String, Tensor>);

impl Fixture {
    pub(crate) fn path(name: &str) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures")).join(name)
    }

    /// Opens `tests/fixtures/<name>.safetensors`.
    pub(crate) fn open(name: &str) -> Self {
        let path = Self::path(&format!("{name}.safetensors"));
        match candle_core::safetensors::load(&path, &Device::Cpu) {
            Ok(tensors) => Self(tensors),
            Err(e) => panic!("{}: {e}", path.display()),
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// A tensor as f32.
    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        self.0.get(name).unwrap_or_else(|| panic!("no {name}")).to_dtype(DType::F32).unwrap()
    }

    /// Its values in row-major order.
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        self.tensor(name).flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Integers, exactly.
    pub(crate) fn integers(&self, name: &str) -> Vec<i64> {
        let tensor = self.0.get(name).unwrap_or_else(|| panic!("no {name}"));
        tensor.to_dtype(DType::I64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }
}

/// Runs `f` where there are so many threads.
pub(crate) fn on_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}

/// One section of a `config.json` below `tests/fixtures`.
pub(crate) fn load_config<T: serde::de::DeserializeOwned>(name: &str, section: &str) -> T {
    let text = std::fs::read_to_string(Fixture::path(name)).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(all[section].clone()).unwrap()
}

/// `‖a − b‖ / ‖b‖`.
pub(crate) fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths");
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (difference / norm).sqrt()
}
