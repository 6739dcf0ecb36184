//! The application of Myna: window, command line, playback, files. The engine does the speaking.

pub mod audio_file;
pub mod export;
