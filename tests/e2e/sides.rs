//! Two takes that are compared: every sample that is heard is one of theirs, at the same place, whichever is heard.

use std::time::Duration;

use myna::audio_file::decode;
use myna::player::FADE_SECS;
use myna_engine::dsp::resample::resample;

use crate::desk::{Desk, RATE_HZ};
use crate::likeness::compare;

/// Changes of sides while the takes play.
const CHANGES: usize = 5;
/// The takes are saved in 24 bits.
const NEAR: f32 = 1e-4;

/// Has two settings compared, and saves both takes.
pub fn make(desk: &mut Desk) {
    let voices = desk.count("voice ready");
    desk.key("ctrl+b");
    desk.key("ctrl+Return");
    desk.await_line("compared", 1, Duration::from_secs(240));
    desk.key("Escape");
    // The model of the window comes back; then the machine is at rest.
    desk.await_line("voice ready", voices + 1, Duration::from_secs(60));
    let saved = desk.count("saved");
    desk.key("ctrl+s");
    desk.await_line("saved", saved + 1, Duration::from_secs(30));
}

/// Plays them, changes sides several times, and compares the recording with both.
pub fn listen(desk: &mut Desk, _chance: usize) -> Result<String, String> {
    let (before, ends) = (desk.played(), desk.count("heard to the end"));
    desk.key("a");
    desk.key("space");
    for change in 0..CHANGES {
        desk.await_growth("spk.monitor", 0.7);
        desk.key(if change % 2 == 0 { "b" } else { "a" });
    }
    desk.await_line("heard to the end", ends + 1, Duration::from_secs(60));
    let heard = desk.heard_since(before);
    let mut takes = ["a", "b"].map(|name| decode(&desk.compared_path().join(name).with_extension("wav")).unwrap());
    // The shorter one is silent at its end.
    let longest = takes[0].samples.len().max(takes[1].samples.len());
    let takes = takes.each_mut().map(|take| {
        take.samples.resize(longest, 0.0);
        resample(&take.samples, take.sample_rate_hz, RATE_HZ).unwrap()
    });
    let offset = compare(&heard, &takes[0])?.offset;
    follow(&heard[offset..], &takes)
}

/// Follows a recording from side to side.
fn follow(heard: &[f32], takes: &[Vec<f32>; 2]) -> Result<String, String> {
    let fade = (FADE_SECS * RATE_HZ as f32) as usize + 1;
    let length = heard.len().min(takes[0].len());
    let (mut side, mut changes, mut i) = (0, 0, 0);
    while i < length {
        if (heard[i] - takes[side][i]).abs() < NEAR {
            i += 1;
            continue;
        }
        // A change of sides: between the two for as long as a fade, and then the other one.
        let end = (i + fade).min(length);
        for j in i..end {
            let (low, high) = (takes[0][j].min(takes[1][j]), takes[0][j].max(takes[1][j]));
            if heard[j] < low - NEAR || heard[j] > high + NEAR {
                let at = j as f32 / RATE_HZ as f32;
                return Err(format!("{at:.4} s: {} is neither {} nor {}", heard[j], takes[0][j], takes[1][j]));
            }
        }
        (side, changes, i) = (1 - side, changes + 1, end);
    }
    let said = format!("{changes} changes, every other sample that of one side at its place");
    if changes == CHANGES { Ok(said) } else { Err(said) }
}
