//! Getting released models: on a thread of its own, while the window goes on.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use myna_engine::Error;
use myna_engine::protocol::CancelToken;

use super::App;
use super::inbox::Inbound;
use crate::download::{self, Release};
use crate::state::{Fetching, Tone};

/// Time between two looks at how far it is.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

impl App {
    /// Sees which released models are here; the disk may take its time to say.
    pub(super) fn look_for_releases(&self) {
        let Some(models) = self.state.releases.folder.clone() else { return };
        self.post.work("models", move || {
            let here = download::catalog().iter().filter(|release| release.is_there(&models));
            Inbound::Releases(here.map(|release| release.name.clone()).collect())
        });
    }

    pub(super) fn fetch_model(&mut self, name: &str) {
        let (Some(release), Some(models), None) =
            (download::release(name), self.state.releases.folder.clone(), &self.fetching)
        else {
            return;
        };
        let cancel = CancelToken::default();
        self.fetching = Some(cancel.clone());
        self.state.releases.fetching = Some(Fetching { release, bytes: 0, begun: None });
        let (hub, post) = (self.hub.clone(), self.post.clone());
        self.post.work("download", move || {
            let mut told = None::<Instant>;
            let mut tell = |bytes| {
                if told.is_none_or(|at| at.elapsed() >= BETWEEN_LOOKS) {
                    told = Some(Instant::now());
                    post.send(Inbound::Fetching(bytes));
                }
            };
            Inbound::Fetched(release, download::fetch(release, &models, &hub, &cancel, &mut tell))
        });
    }

    pub(super) fn stop_fetching(&mut self) {
        if let Some(cancel) = &self.fetching {
            cancel.cancel();
        }
    }

    pub(super) fn fetching(&mut self, bytes: u64) {
        if let Some(fetching) = &mut self.state.releases.fetching {
            fetching.bytes = bytes;
            fetching.begun.get_or_insert((Instant::now(), bytes));
        }
    }

    /// What was fetched is what is wanted, unless something else is going on.
    pub(super) fn fetched(&mut self, release: &'static Release, done: Result<PathBuf>) {
        self.fetching = None;
        self.state.releases.fetching = None;
        match done {
            Ok(folder) => {
                tracing::info!(name = release.name, "fetched");
                self.state.releases.here.insert(release.name.clone());
                if self.state.job.is_busy() || self.comparing.is_some() {
                    let words = format!("{} is here; choose it beside the name of the model.", release.title);
                    self.state.notify(Tone::Good, words);
                } else {
                    self.state.notify(Tone::Good, format!("{} is here.", release.title));
                    self.use_model(folder);
                }
            }
            Err(error) if matches!(error.downcast_ref(), Some(Error::Cancelled)) => {}
            Err(error) => self.state.notify(Tone::Bad, format!("{error:#}")),
        }
    }
}
