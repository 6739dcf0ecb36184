//! `--play`: sound on the system's device while it is made, through the window's own player.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use myna_engine::protocol::AudioChunk;

use crate::player::{DeviceState, PlayState, Player, SystemOutput, Take};

/// Plays one utterance.
pub struct Speaker {
    player: Player,
    audio: Sender<AudioChunk>,
}

impl Speaker {
    /// Opens the device; an utterance of about `expected_secs` is to come.
    pub fn open(expected_secs: f32) -> anyhow::Result<Self> {
        let player = Player::new(Box::new(SystemOutput), None, 1.0, Arc::new(|| ()))?;
        let (audio, chunks) = unbounded();
        player.begin(Take::new(), chunks, Some(Instant::now()), expected_secs);
        Ok(Self { player, audio })
    }

    /// More sound.
    pub fn push(&self, chunk: &AudioChunk) {
        // Without a device the player may be gone; the file is still written.
        let _ = self.audio.send(chunk.clone());
    }

    /// Waits until `secs` of sound have been heard; says why if there is no device. Returns how often it ran dry.
    #[allow(clippy::print_stderr)]
    pub fn finish(self, secs: f64) -> usize {
        drop(self.audio);
        let deadline = Instant::now() + Duration::from_secs_f64(2.0 * secs + 5.0);
        loop {
            let status = self.player.status();
            if let DeviceState::Missing { why } = &status.device {
                eprintln!("myna: nothing is heard: {why}");
                return status.underruns as usize;
            }
            if status.state == PlayState::Ended || Instant::now() > deadline {
                return status.underruns as usize;
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}
