//! The file that settings live in: read whatever it holds, written atomically, set aside when it is broken.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::state::Settings;

/// A place for settings.
#[derive(Debug, Clone)]
pub struct SettingsFile {
    path: PathBuf,
}

impl SettingsFile {
    /// At a path of one's own.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where this system keeps such files; `None` where it has no such place.
    pub fn of_system() -> Option<Self> {
        let folders = directories::ProjectDirs::from("", "", "myna")?;
        Some(Self::at(folders.config_dir().join("settings.json")))
    }

    /// What was remembered, or the defaults, and a remark for the person where the file had to be set aside.
    pub fn load(&self) -> (Settings, Option<String>) {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return (Settings::default(), None),
            Err(error) => return (Settings::default(), self.set_aside(&error.to_string())),
        };
        match serde_json::from_str::<Settings>(&text) {
            Ok(settings) => (sane(settings), None),
            Err(error) => (Settings::default(), self.set_aside(&error.to_string())),
        }
    }

    /// What was remembered, or the defaults, without touching anything.
    pub fn peek(&self) -> Settings {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        serde_json::from_str(&text).map(sane).unwrap_or_default()
    }

    /// Writes all or nothing.
    ///
    /// # Errors
    /// If the folder cannot be made or written.
    pub fn save(&self, settings: &Settings) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let mut file = tempfile::NamedTempFile::new_in(folder).with_context(|| folder.display().to_string())?;
        file.write_all(&serde_json::to_vec_pretty(settings)?)?;
        file.persist(&self.path).with_context(|| self.path.display().to_string())?;
        Ok(())
    }

    fn set_aside(&self, why: &str) -> Option<String> {
        let aside = self.path.with_extension("broken.json");
        tracing::warn!(path = %self.path.display(), why, "settings cannot be read");
        let kept = match std::fs::rename(&self.path, &aside) {
            Ok(()) => format!("; the old file is now {}", aside.display()),
            Err(_) => String::new(),
        };
        Some(format!("Your settings could not be read, so Myna starts with fresh ones{kept}."))
    }
}

/// Keeps figures that a hand may have written within what the window can show.
fn sane(mut settings: Settings) -> Settings {
    let defaults = Settings::default();
    if !settings.volume.is_finite() {
        settings.volume = defaults.volume;
    }
    settings.volume = settings.volume.clamp(0.0, 1.0);
    if settings.window.iter().any(|side| !side.is_finite() || *side < 200.0 || *side > 20_000.0) {
        settings.window = defaults.window;
    }
    settings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn settings_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let file = SettingsFile::at(folder.path().join("deep/er/settings.json"));
        assert_eq!(file.load(), (Settings::default(), None));
        let settings =
            Settings { text: "Hallo \"Welt\"".into(), volume: 0.25, seed_locked: true, ..Settings::default() };
        file.save(&settings).unwrap();
        assert_eq!(file.load(), (settings, None));
    }

    #[test]
    fn a_broken_file_is_set_aside_and_said_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.json");
        for broken in ["{ not json", "{\"volume\": \"loud\"}", "\u{0}\u{1}"] {
            std::fs::write(&path, broken).unwrap();
            let (settings, remark) = SettingsFile::at(&path).load();
            assert_eq!(settings, Settings::default());
            assert!(remark.unwrap().contains("settings.broken.json"));
            assert!(!path.exists());
            assert_eq!(std::fs::read_to_string(folder.path().join("settings.broken.json")).unwrap(), broken);
        }
        std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
        assert!(SettingsFile::at(&path).load().1.is_some());
    }

    #[test]
    fn an_older_or_newer_file_keeps_what_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.json");
        std::fs::write(&path, r#"{"text": "kept", "volume": 7.5, "window": [0, 1e9], "from_the_future": 1}"#).unwrap();
        let (settings, remark) = SettingsFile::at(&path).load();
        assert_eq!((settings.text.as_str(), settings.volume, remark), ("kept", 1.0, None));
        assert_eq!(settings.window, Settings::default().window);
    }
}
