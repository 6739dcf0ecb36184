//! The real program, in a real window, through a real sound server: what is heard is what is saved, two takes that are
//! compared change sides without a gap, and what is recorded is what was said.
//!
//! Needs `Xvfb`, `xdotool`, `pulseaudio`, `parec`, `paplay` and a software OpenGL (Debian: `xvfb xdotool pulseaudio
//! pulseaudio-utils libgl1 libgl1-mesa-dri libxkbcommon-x11-0 libxcursor1 libxi6`, all of which
//! `packaging/linux/packages.sh test` installs); without them it fails and says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_debug_implementations)]

mod desk;
mod likeness;
mod sides;

use std::time::Duration;

use desk::{Desk, RATE_HZ};
use likeness::{compare, find, longest_dropout_secs};
use myna::audio_file::decode;
use myna_engine::dsp::resample::resample;

const TEXT: &str = "The rain had stopped before dawn. Somebody was whistling in the harbour.";

/// A machine that is busy with other things may starve even the sound server; that is not what is tested. What is asked
/// of a chance is always the same, and every chance that was lost is reported with what the player counted.
const CHANCES: usize = 3;

#[test]
fn what_is_heard_is_what_is_saved_and_the_microphone_is_heard_too() {
    let mut desk = Desk::open();
    desk.await_line("voice ready", 1, Duration::from_secs(120));
    // Into the editor, well below the sentences to begin with.
    desk.click(520, 420);
    desk.type_text(TEXT);
    chances("what is heard", |chance| speak(&mut desk, chance));
    sides::make(&mut desk);
    chances("two sides", |chance| sides::listen(&mut desk, chance));
    desk.key("ctrl+b");
    chances("what is recorded", |chance| record(&mut desk, chance));
    desk.close();
}

/// Tries until something is so; what it said the last time otherwise.
fn chances(what: &str, mut so: impl FnMut(usize) -> Result<String, String>) {
    let mut complaint = String::new();
    for chance in 1..=CHANCES {
        match so(chance) {
            Ok(fine) => return println!("{what}: {fine}"),
            Err(error) => complaint = error,
        }
        println!("{what}, chance {chance} of {CHANCES}: {complaint}");
    }
    panic!("{what}: {complaint}");
}

/// Speaks, records the loudspeakers meanwhile, saves, and compares.
fn speak(desk: &mut Desk, chance: usize) -> Result<String, String> {
    let before = desk.played();
    desk.key("ctrl+Return");
    desk.await_line("heard to the end", chance, Duration::from_secs(180));
    let heard = desk.heard_since(before);
    desk.key("ctrl+s");
    desk.await_line("saved", chance, Duration::from_secs(30));
    let saved = decode(&desk.save_path()).unwrap();
    assert_eq!(saved.sample_rate_hz, 24_000);
    assert!(saved.secs() > 2.0, "{} s are not that text", saved.secs());
    let wanted = resample(&saved.samples, saved.sample_rate_hz, RATE_HZ).unwrap();
    let likeness = compare(&heard, &wanted)?;
    let gap = longest_dropout_secs(&heard[likeness.offset..], &wanted, RATE_HZ);
    let end = desk.line("heard to the end");
    let first = desk.line("first sound");
    let first = first.rsplit("ms=").next().unwrap_or_default();
    let said = format!(
        "correlation {:.6}, longest dropout {:.1} ms, over {:.2} s; first sound after {first} ms",
        likeness.correlation,
        gap * 1e3,
        saved.secs()
    );
    let fine = likeness.correlation >= 0.99 && gap < 0.003 && end.contains("underruns=0");
    let blame = if end.contains("underruns=0") {
        "the player was never late: either the sound server was, or the program loses sound"
    } else {
        "the player counted underruns: this machine was too busy to make sound in time"
    };
    if fine { Ok(said) } else { Err(format!("{said}; {blame} ({end})")) }
}

/// Has a virtual source speak, records it with Myna, and compares; the recording becomes the voice.
fn record(desk: &mut Desk, chance: usize) -> Result<String, String> {
    let voices = desk.count("voice ready");
    let said = desk.say_into_microphone();
    desk.key("ctrl+r");
    desk.await_line("listening", chance, Duration::from_secs(60));
    desk.await_growth("mic", 5.0);
    desk.key("ctrl+r");
    desk.await_line("recorded", chance, Duration::from_secs(20));
    let recorded = decode(&desk.recording_path(chance)).unwrap();
    assert!(recorded.secs() > 3.0, "{} s", recorded.secs());
    desk.await_line("voice ready", voices + 1, Duration::from_secs(60));
    let said = resample(&said.samples, said.sample_rate_hz, recorded.sample_rate_hz).unwrap();
    let place = find(&recorded.samples, &said)?;
    let words = format!("correlation {:.6} over {:.2} s", place.correlation, recorded.secs());
    if place.correlation >= 0.99 { Ok(words) } else { Err(words) }
}
