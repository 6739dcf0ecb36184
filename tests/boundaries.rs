//! Rules of the house that the compiler does not enforce.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder of the repository.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found
}

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let rust = files(folder).into_iter().filter(|p| p.extension().is_some_and(|e| e == "rs"));
    let read: Vec<_> = rust.map(|p| (p.clone(), std::fs::read_to_string(p).unwrap())).collect();
    assert!(!read.is_empty(), "no sources in {folder}");
    read
}

#[test]
fn the_engine_knows_no_window_and_no_sound_card_and_the_application_no_tensors() {
    let manifest = std::fs::read_to_string(root().join("src/engine/Cargo.toml")).unwrap();
    for name in ["egui", "eframe", "cpal", "rfd", "symphonia"] {
        assert!(!manifest.contains(name), "the engine must not depend on {name}");
    }
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(!manifest.contains("candle"), "the application must not depend on candle");
}

#[test]
fn features_are_asked_for_only_where_devices_and_kernels_are() {
    // The last two choose a module: with a card or without one.
    let allowed = ["engine/kernels/", "engine/device.rs", "engine/lib.rs", "engine/t3/mod.rs", "engine/s3gen/mod.rs"];
    for (path, text) in sources("src") {
        let place = path.to_string_lossy();
        let asks = text.contains("feature = \"") && !place.ends_with("build.rs");
        assert!(!asks || allowed.iter().any(|file| place.contains(file)), "{place} asks for a feature");
    }
}

#[test]
fn no_test_is_switched_off() {
    let switched_off = concat!("#[ig", "nore");
    for (path, text) in [sources("src"), sources("tests")].concat() {
        assert!(!text.contains(switched_off), "{} ignores a test", path.display());
    }
}

#[test]
fn files_stay_readable_in_one_sitting() {
    for (path, text) in sources("src") {
        let lines = text.lines().count();
        assert!(lines <= 560, "{} has {lines} lines; split it at a seam", path.display());
    }
}

#[test]
fn models_assets_and_fixtures_stay_small() {
    let bytes: u64 =
        ["models", "assets", "tests/fixtures"].iter().flat_map(|f| files(f)).map(|p| p.metadata().unwrap().len()).sum();
    assert!(bytes <= 65_000_000, "models, assets and fixtures hold {} MB", bytes / 1_000_000);
}
