//! Small things that panels are made of.

mod button;
mod elide;
mod icon;
mod long_text;
mod meter;
mod readout;
mod waveform;

pub use button::{chip, combo, fold, icon_button, primary_button, quiet_button};
pub use elide::{elided, sentence};
pub use icon::Icon;
pub use long_text::lay_out;
pub use meter::meter;
pub use readout::{keep_from_bar, readout, section, short_time, stage_bar};
pub use waveform::{ClipWave, SpeechWave, clip_wave, speech_wave, time_label};
