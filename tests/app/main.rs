//! Drives the real window without a display: the test is the engine, the sound card, the microphone and the person.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_debug_implementations)]

mod comparing;
mod fake;
mod fetching;
mod hand;
mod options;
mod pictures;
mod robust;
mod saving;
mod speaking;
mod voices;
