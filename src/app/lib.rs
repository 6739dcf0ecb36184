//! The application of Myna: window, command line, playback, files. The engine does the speaking.

pub mod action;
pub mod app;
pub mod audio_file;
pub mod cli;
pub mod clip_check;
pub mod comparison;
pub mod dialogs;
pub mod download;
pub mod engine_link;
pub mod export;
pub mod frame_times;
pub mod library;
pub mod machine;
pub mod panels;
pub mod player;
pub mod recorder;
pub mod settings_file;
pub mod speech_measure;
pub mod state;
pub mod theme;
pub mod widgets;

/// Where what only saves time is kept; nothing where the system has no such place.
pub fn cache_folder() -> Option<std::path::PathBuf> {
    directories::ProjectDirs::from("", "", "myna").map(|folders| folders.cache_dir().to_owned())
}
