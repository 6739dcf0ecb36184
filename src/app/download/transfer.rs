//! One file over the network: begun again where it was broken off, and trusted only when its hash is right.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use myna_engine::Error;
use myna_engine::protocol::CancelToken;
use sha2::{Digest, Sha256};
use ureq::http::{StatusCode, header};

use super::{Release, ReleaseFile};

/// Where released models live. `HF_ENDPOINT` names a mirror, as it does for other programs.
const HUB: &str = "https://huggingface.co";
/// Interruptions in a row that are mended without asking anybody.
const ATTEMPTS: u32 = 5;
/// Bytes between two looks at whether to stop.
const PIECE: usize = 1 << 16;

/// A place that serves models.
#[derive(Debug, Clone)]
pub struct Hub {
    base: String,
    agent: ureq::Agent,
    pause: Duration,
}

impl Hub {
    /// The usual place, or the mirror that the environment names.
    pub fn of_system() -> Self {
        let base = std::env::var("HF_ENDPOINT").ok().filter(|base| !base.is_empty());
        Self::at(base.as_deref().unwrap_or(HUB))
    }

    /// Another place.
    pub fn at(base: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(Duration::from_secs(20)))
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .http_status_as_error(false)
            .user_agent(format!("myna/{}", env!("CARGO_PKG_VERSION")))
            .build();
        let base = base.trim_end_matches('/').to_owned();
        Self { base, agent: config.into(), pause: Duration::from_secs(1) }
    }

    /// With another pause before the first new attempt than a second; each further one takes twice as long.
    #[must_use]
    pub fn with_pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// Fetches a file into a folder. `progress` hears how much of it is there.
    pub(super) fn fetch(
        &self,
        release: &Release,
        file: &ReleaseFile,
        folder: &Path,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let url = format!("{}/{}/resolve/{}/{}", self.base, release.repo, release.revision, file.name);
        let part = folder.join(file.part_name());
        let mut piece = Part::open(&part, file.bytes)?;
        let (mut failures, mut pause) = (0, self.pause);
        while piece.bytes < file.bytes {
            let before = piece.bytes;
            match self.go_on(&url, file, &mut piece, cancel, progress) {
                Ok(()) => {}
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Passing(error)) => {
                    if piece.bytes > before {
                        (failures, pause) = (0, self.pause);
                    }
                    failures += 1;
                    if failures >= ATTEMPTS {
                        let kept = "what was fetched is kept; try again when the connection is better";
                        return Err(anyhow!("{url}: {error}; {kept}"));
                    }
                    tracing::warn!(%error, failures, "broken off; going on");
                    wait(pause, cancel)?;
                    pause *= 2;
                }
            }
        }
        piece.finish(file, folder)
    }

    /// Asks for the rest of a file and takes in what comes.
    fn go_on(
        &self,
        url: &str,
        file: &ReleaseFile,
        part: &mut Part,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Trouble> {
        let mut request = self.agent.get(url);
        if part.bytes > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", part.bytes));
        }
        let response = request.call().map_err(|error| Trouble::of(&error))?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            // The whole, asked for or not.
            StatusCode::OK => part.restart()?,
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(Trouble::Passing(format!("the server answers {status}")));
            }
            status => return Err(Trouble::Final(anyhow!("{url}: the server answers {status}"))),
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; PIECE];
        while part.bytes < file.bytes {
            if cancel.is_cancelled() {
                return Err(Trouble::Final(Error::Cancelled.into()));
            }
            match body.read(&mut buffer) {
                Ok(0) => return Err(Trouble::Passing("the connection ended early".to_owned())),
                Ok(n) => part.append(&buffer[..n])?,
                Err(error) => return Err(Trouble::Passing(error.to_string())),
            }
            progress(part.bytes.min(file.bytes));
        }
        Ok(())
    }
}

/// What can be in the way.
enum Trouble {
    /// It may pass.
    Passing(String),
    /// It will not.
    Final(anyhow::Error),
}

impl Trouble {
    fn of(error: &ureq::Error) -> Self {
        match error {
            ureq::Error::BadUri(_) | ureq::Error::InvalidProxyUrl | ureq::Error::RedirectFailed => {
                Self::Final(anyhow!("{error}"))
            }
            // No connection at all is what a person without one should hear soon, but a short gap happens.
            _ => Self::Passing(error.to_string()),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Final(error.into())
    }
}

/// What is there of a file, and its hash so far.
struct Part {
    path: std::path::PathBuf,
    file: File,
    bytes: u64,
    hash: Sha256,
}

impl Part {
    /// Takes up what was fetched before.
    fn open(path: &Path, most: u64) -> Result<Self, Error> {
        let fail = |e| Error::io(path, e);
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(fail)?;
        let mut hash = Sha256::new();
        let bytes = std::io::copy(&mut file, &mut HashWriter(&mut hash)).map_err(fail)?;
        let mut part = Self { path: path.to_owned(), file, bytes, hash };
        if bytes > most {
            part.restart()?;
        }
        Ok(part)
    }

    fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(|e| Error::io(&self.path, e))?;
        (self.bytes, self.hash) = (0, Sha256::new());
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> Result<(), Error> {
        self.file.write_all(data).map_err(|e| Error::io(&self.path, e))?;
        self.hash.update(data);
        self.bytes += data.len() as u64;
        Ok(())
    }

    /// Gives the file its name, if it is what it should be.
    fn finish(self, file: &ReleaseFile, folder: &Path) -> Result<()> {
        let found: String = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found != file.sha256 || self.bytes != file.bytes {
            // It would be as wrong the next time.
            std::fs::remove_file(&self.path).map_err(|e| Error::io(&self.path, e))?;
            bail!("what arrived is not the file that was meant (SHA-256 {found}, not {}); try again", file.sha256);
        }
        self.file.sync_all().map_err(|e| Error::io(&self.path, e))?;
        let path = folder.join(&file.name);
        Ok(std::fs::rename(&self.path, &path).map_err(|e| Error::io(&path, e))?)
    }
}

impl ReleaseFile {
    /// Its name until it is whole.
    pub(super) fn part_name(&self) -> String {
        format!("{}.part", self.name)
    }
}

struct HashWriter<'a>(&'a mut Sha256);

impl Write for HashWriter<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.update(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Waits, but not for somebody who wants to stop.
fn wait(pause: Duration, cancel: &CancelToken) -> Result<()> {
    let until = std::time::Instant::now() + pause;
    while std::time::Instant::now() < until {
        if cancel.is_cancelled() {
            bail!(Error::Cancelled);
        }
        std::thread::sleep(Duration::from_millis(20).min(pause));
    }
    Ok(())
}
