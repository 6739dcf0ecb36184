//! `--play`: sound on the system's device while it is made, through the window's own player.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use myna_engine::protocol::{AudioChunk, CancelToken};

use super::report::print_note;
use crate::player::{DeviceState, PlayState, Player, SystemOutput, Take};

/// Plays one utterance.
pub struct Speaker {
    player: Player,
    audio: Sender<AudioChunk>,
    chunks: Receiver<AudioChunk>,
    expected_secs: f32,
}

/// What playing was like.
pub struct Heard {
    /// Times that it ran dry.
    pub underruns: usize,
    /// From the request to the first sample that the device took.
    pub first_ms: Option<f64>,
}

impl Speaker {
    /// Opens the device; an utterance of about `expected_secs` is to come.
    pub fn open(expected_secs: f32) -> anyhow::Result<Self> {
        let player = Player::new(Box::new(SystemOutput), None, 1.0, Arc::new(|| ()))?;
        let (audio, chunks) = unbounded();
        Ok(Self { player, audio, chunks, expected_secs })
    }

    /// Waits for sound that was `asked` for.
    pub fn begin(&self, asked: Instant) {
        self.player.begin(Take::new(), self.chunks.clone(), Some(asked), self.expected_secs);
    }

    /// More sound.
    pub fn push(&self, chunk: &AudioChunk) {
        // Without a device the player may be gone; the file is still written.
        let _ = self.audio.send(chunk.clone());
    }

    /// Waits until `secs` of sound have been heard, or for nobody any more; says why if there is no device.
    pub fn finish(self, secs: f64, cancel: &CancelToken) -> Heard {
        let Self { player, audio, chunks, .. } = self;
        drop((audio, chunks));
        let deadline = Instant::now() + Duration::from_secs_f64(2.0 * secs + 5.0);
        loop {
            let status = player.status();
            let missing = match &status.device {
                DeviceState::Missing { why } => Some(why),
                _ => None,
            };
            if let Some(why) = missing {
                print_note(&format!("myna: nothing is heard: {why}"));
            }
            let over = status.state == PlayState::Ended || cancel.is_cancelled() || Instant::now() > deadline;
            if missing.is_some() || over {
                let first_ms = status.first_audio.map(|first| first.as_secs_f64() * 1e3);
                return Heard { underruns: status.underruns as usize, first_ms };
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}
