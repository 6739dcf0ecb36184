//! The real program, in a real window, through a real sound server: what is heard is what is saved, and what is recorded
//! is what was said.
//!
//! Needs `Xvfb`, `xdotool`, `pulseaudio`, `parec`, `paplay` and a software OpenGL (Debian: `xvfb xdotool pulseaudio
//! pulseaudio-utils libgl1 libgl1-mesa-dri libxkbcommon-x11-0 libxcursor1 libxi6`); without them it fails and says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_debug_implementations)]

mod desk;
mod likeness;

use std::time::Duration;

use desk::Desk;
use likeness::{compare, find, first_channel, longest_dropout_secs};
use myna::audio_file::decode;
use myna_engine::dsp::resample::resample;

const TEXT: &str = "The rain had stopped before dawn. Somebody was whistling in the harbour.";
const RATE_HZ: u32 = 48_000;

#[test]
fn what_is_heard_is_what_is_saved_and_the_microphone_is_heard_too() {
    let mut desk = Desk::open();
    desk.await_line("voice ready", 1, Duration::from_secs(60));

    let monitor = desk.record_monitor();
    desk.click(500, 150);
    desk.type_text(TEXT);
    desk.key("ctrl+Return");
    desk.await_line("heard to the end", 1, Duration::from_secs(120));
    let heard = first_channel(&desk.stop_recording(monitor), 2);
    let end = desk.line("heard to the end");
    assert!(end.contains("underruns=0"), "{end}");

    desk.key("ctrl+s");
    desk.await_line("saved", 1, Duration::from_secs(20));
    let saved = decode(&desk.save_path()).unwrap();
    assert_eq!(saved.sample_rate_hz, 24_000);
    assert!(saved.secs() > 2.0, "{} s are not that text", saved.secs());
    let wanted = resample(&saved.samples, saved.sample_rate_hz, RATE_HZ).unwrap();
    let likeness = compare(&heard, &wanted);
    println!("heard against saved: correlation {:.6} over {:.2} s", likeness.correlation, saved.secs());
    assert!(likeness.correlation >= 0.99, "{likeness:?}");
    let gap = longest_dropout_secs(&heard[likeness.offset..], &wanted, RATE_HZ);
    assert!(gap < 0.003, "a dropout of {:.1} ms", gap * 1e3);

    // The microphone: a virtual source says something, Myna records it and learns the voice.
    let said = desk.say_into_microphone();
    desk.key("ctrl+r");
    std::thread::sleep(Duration::from_secs_f32(myna::recorder::COUNTDOWN_SECS + 5.0));
    desk.key("ctrl+r");
    desk.await_line("recorded", 1, Duration::from_secs(10));
    let recorded = decode(&desk.recording_path()).unwrap();
    assert!(recorded.secs() > 3.5, "{} s", recorded.secs());
    let said = resample(&said.samples, said.sample_rate_hz, recorded.sample_rate_hz).unwrap();
    let place = find(&recorded.samples, &said);
    println!("recorded against said: correlation {:.6} over {:.2} s", place.correlation, recorded.secs());
    assert!(place.correlation >= 0.99, "{place:?}");
    desk.await_line("voice ready", 2, Duration::from_secs(60));
    desk.close();
}
