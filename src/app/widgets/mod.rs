//! Small things that panels are made of.

mod button;
mod elide;
mod icon;
mod long_text;
mod meter;
mod readout;
mod spectrogram;
mod waveform;

pub use button::{chip, combo, fold, icon_button, primary_button, quiet_button, toggle};
pub use elide::{elided, sentence};
pub use icon::Icon;
pub use long_text::lay_out;
pub use meter::meter;
pub use readout::{keep_from_bar, progress, readout, section, short_time, stage_bar};
pub use spectrogram::{Shade, spectrogram};
pub use waveform::{ClipWave, SpeechWave, clip_wave, speech_wave, time_label};
