//! A desk with a screen, loudspeakers, a microphone and Myna on it, all of them virtual.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use myna::export::Format;
use myna::library::{Library, read};
use myna::settings_file::SettingsFile;
use myna::state::{ExportChoice, Settings, ThemeChoice};
use myna_engine::dsp::resample::resample;
use myna_engine::protocol::Pcm;

/// Rate of everything the sound server plays and records.
pub const RATE_HZ: u32 = 48_000;

/// A process that ends with the test.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The desk. Fields are dropped in this order.
pub struct Desk {
    app: Process,
    window: String,
    speaking: Option<Process>,
    _ears: [Process; 2],
    _sound: Process,
    _screen: Process,
    environment: Vec<(String, String)>,
    folder: tempfile::TempDir,
}

impl Desk {
    /// Sets everything up and opens the window.
    pub fn open() -> Self {
        all_installed();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path.display().to_string()
        };
        let runtime = at("run");
        let (screen, display) = screen();
        let mut environment: Vec<(String, String)> = [
            ("HOME", at("home")),
            ("XDG_CONFIG_HOME", at("config")),
            ("XDG_DATA_HOME", at("data")),
            ("XDG_RUNTIME_DIR", runtime.clone()),
            ("PULSE_RUNTIME_PATH", at("run/pulse")),
            ("PULSE_STATE_PATH", at("run/state")),
            ("PULSE_SERVER", format!("unix:{runtime}/pulse/native")),
            ("DISPLAY", display),
            ("LIBGL_ALWAYS_SOFTWARE", "1".to_owned()),
            ("NO_COLOR", "1".to_owned()),
            ("RUST_LOG", "info".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        let path = std::env::var("PATH").unwrap_or_default();
        environment.push(("PATH".to_owned(), format!("{}:{path}", at("bin"))));
        private(Path::new(&runtime));
        let sound = sound_server(&runtime, &environment);
        let ears = ["spk.monitor", "mic"].map(|source| listen(folder.path(), source, &environment));
        at_ease(&environment);
        dialog_program(&folder.path().join("bin/zenity"), folder.path());
        settings(&folder.path().join("config/myna/settings.json"));
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let app = command(env!("CARGO_BIN_EXE_myna"), &environment)
            .env_remove("WAYLAND_DISPLAY")
            .env_remove("DBUS_SESSION_BUS_ADDRESS")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let mut desk = Self {
            app: Process(app),
            window: String::new(),
            speaking: None,
            _ears: ears,
            _sound: sound,
            _screen: screen,
            environment,
            folder,
        };
        desk.find_window();
        desk
    }

    fn find_window(&mut self) {
        let begun = Instant::now();
        while self.window.is_empty() {
            assert!(self.app.0.try_wait().unwrap().is_none(), "the program ended:\n{}", self.log());
            assert!(begun.elapsed() < Duration::from_secs(60), "there is no window:\n{}", self.log());
            let found = self.run("xdotool", &["search", "--onlyvisible", "--name", "^Myna$"]);
            self.window = found.lines().last().unwrap_or_default().to_owned();
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("a window after {:.2} s", begun.elapsed().as_secs_f32());
        self.run("xdotool", &["windowfocus", &self.window]);
    }

    // What is done with mouse and keyboard waits in the display's queue and is seen in this order, however late.

    pub fn click(&self, x: u32, y: u32) {
        let (x, y) = (x.to_string(), y.to_string());
        self.run("xdotool", &["mousemove", "--window", &self.window, &x, &y, "click", "1"]);
    }

    pub fn type_text(&self, text: &str) {
        self.run("xdotool", &["type", "--delay", "12", text]);
    }

    pub fn key(&self, key: &str) {
        self.run("xdotool", &["key", key]);
    }

    /// Waits until the log says something for the `times`th time.
    pub fn await_line(&mut self, text: &str, times: usize, patience: Duration) {
        let begun = Instant::now();
        while self.count(text) < times {
            assert!(self.app.0.try_wait().unwrap().is_none(), "the program ended:\n{}", self.log());
            assert!(begun.elapsed() < patience, "waited in vain for \"{text}\":\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// How often the log says something.
    pub fn count(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    /// The last line of the log that says so.
    pub fn line(&self, text: &str) -> String {
        self.log().lines().rfind(|line| line.contains(text)).unwrap_or_default().to_owned()
    }

    /// Samples of the loudspeakers recorded so far.
    pub fn played(&self) -> usize {
        std::fs::metadata(self.folder.path().join("spk.monitor")).unwrap().len() as usize / 4
    }

    /// What the loudspeakers played since there were `from` samples, and some silence behind it.
    pub fn heard_since(&self, from: usize) -> Vec<f32> {
        self.await_growth("spk.monitor", 0.7);
        let bytes = std::fs::read(self.folder.path().join("spk.monitor")).unwrap();
        bytes.as_chunks::<4>().0[from..].iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    /// Waits until so many seconds more have been recorded.
    pub fn await_growth(&self, source: &str, secs: f32) {
        let length = || std::fs::metadata(self.folder.path().join(source)).unwrap().len() as usize / 4;
        let until = length() + (secs * RATE_HZ as f32) as usize;
        let begun = Instant::now();
        while length() < until {
            assert!(begun.elapsed() < Duration::from_secs(60), "the sound server stands still");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Has all sample voices speak into the microphone, one after the other.
    pub fn say_into_microphone(&mut self) -> Pcm {
        self.speaking = None;
        let mut samples = Vec::new();
        for clip in Library::with_samples().clips() {
            let pcm = read(&clip.origin).unwrap().pcm;
            samples.extend(resample(&pcm.samples, pcm.sample_rate_hz, RATE_HZ).unwrap());
        }
        let path = self.folder.path().join("said.wav");
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: RATE_HZ,
            bits_per_sample: 32,
            sample_format: hound::SampleFormat::Float,
        };
        let mut writer = hound::WavWriter::create(&path, spec).unwrap();
        samples.iter().for_each(|s| writer.write_sample(*s).unwrap());
        writer.finalize().unwrap();
        let paplay = hurried("paplay", &self.environment).args(["-d", "micsink"]).arg(&path).spawn();
        self.speaking =
            Some(Process(paplay.unwrap_or_else(|e| panic!("paplay (package pulseaudio-utils) is needed: {e}"))));
        Pcm { samples, sample_rate_hz: RATE_HZ }
    }

    pub fn save_path(&self) -> PathBuf {
        self.folder.path().join("saved.wav")
    }

    /// Where both takes of a comparison are.
    pub fn compared_path(&self) -> PathBuf {
        self.folder.path().join("compared")
    }

    /// Where the `n`th recording is.
    pub fn recording_path(&self, n: usize) -> PathBuf {
        self.folder.path().join(format!("data/myna/recordings/Recording {n}.wav"))
    }

    /// Closes the window by its key, and waits until the program has ended of itself.
    pub fn close(mut self) {
        self.key("ctrl+q");
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.app.0.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "the window does not close:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "the program ended with {status}:\n{}", self.log());
        println!("{}", self.line("per frame"));
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = command(program, &self.environment).args(arguments).output();
        let output = output.unwrap_or_else(|e| panic!("{program} (a package of that name) is needed: {e}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn command(program: &str, environment: &[(String, String)]) -> Command {
    let mut command = Command::new(program);
    command.envs(environment.iter().cloned()).stdin(Stdio::null());
    command
}

/// A command whose threads go first, where that is allowed: sound does not wait for the rest of a busy machine. Sound
/// servers run like that everywhere.
fn hurried(program: &str, environment: &[(String, String)]) -> Command {
    let allowed = command("chrt", environment).args(["--rr", "5", "true"]).stderr(Stdio::null()).status();
    let mut command = if allowed.is_ok_and(|status| status.success()) {
        let mut command = command("chrt", environment);
        command.args(["--rr", "5", program]);
        command
    } else {
        command(program, environment)
    };
    command.stderr(Stdio::null());
    command
}

fn all_installed() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = |program: &&str| !std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    let needed = ["Xvfb", "xdotool", "pulseaudio", "pactl", "parec", "paplay", "chrt"];
    let missing: Vec<&str> = needed.into_iter().filter(|program| missing(program)).collect();
    assert!(missing.is_empty(), "this test needs {missing:?}; its first lines name the packages");
}

fn private(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
}

/// A screen without a cable; its name. It stays as it is when the last of those who look at it goes: a screen that starts
/// anew meanwhile refuses whoever comes.
fn screen() -> (Process, String) {
    let child = Command::new("Xvfb")
        .args(["-displayfd", "1", "-screen", "0", "1280x800x24", "+extension", "GLX", "-nolisten", "tcp", "-noreset"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.unwrap_or_else(|e| panic!("Xvfb (package xvfb) is needed: {e}"));
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.trim().is_empty(), "Xvfb (package xvfb) does not start, so there is no screen to test on");
    (Process(child), format!(":{}", line.trim()))
}

/// Records a source into a file of its name, mono, from now on.
fn listen(folder: &Path, source: &str, environment: &[(String, String)]) -> Process {
    let file = std::fs::File::create(folder.join(source)).unwrap();
    let arguments = ["-d", source, "--latency-msec=50", "--format=float32le", "--rate=48000", "--channels=1", "--raw"];
    let parec = hurried("parec", environment).args(arguments).stdout(file).spawn();
    Process(parec.unwrap_or_else(|e| panic!("parec (package pulseaudio-utils) is needed: {e}")))
}

/// Waits until what is played is heard soon: a null sink renders two seconds ahead until somebody listens closely, and
/// what is played into these two seconds is lost.
fn at_ease(environment: &[(String, String)]) {
    let begun = Instant::now();
    loop {
        let output = command("pactl", environment).args(["list", "sinks"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let latencies = text.lines().filter_map(|line| line.trim().strip_prefix("Latency: "));
        let latencies: Vec<u32> = latencies.filter_map(|rest| rest.split_whitespace().next()?.parse().ok()).collect();
        if latencies.len() == 2 && latencies.iter().all(|&usec| usec < 100_000) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "the sound server is never at ease: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A sound server of our own, with loudspeakers that are recorded and a microphone that is played into.
fn sound_server(runtime: &str, environment: &[(String, String)]) -> Process {
    let configuration = format!(
        "load-module module-native-protocol-unix socket={runtime}/pulse/native auth-anonymous=1\n\
         load-module module-null-sink sink_name=spk rate=48000 channels=2 format=float32le\n\
         load-module module-null-sink sink_name=micsink rate=48000 channels=1 format=float32le channel_map=mono\n\
         load-module module-remap-source master=micsink.monitor source_name=mic channels=1 channel_map=mono\n\
         set-default-sink spk\n\
         set-default-source mic\n"
    );
    let path = format!("{runtime}/pulse.conf");
    std::fs::write(&path, configuration).unwrap();
    let child = hurried("pulseaudio", environment)
        .args(["-n", "-F", &path, "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--disable-shm=yes"])
        .args(["--realtime=no", "--high-priority=no", "--log-level=error"])
        .stderr(Stdio::null())
        .spawn();
    let server = Process(child.unwrap_or_else(|e| panic!("pulseaudio (a package of that name) is needed: {e}")));
    let begun = Instant::now();
    while !command("pactl", environment).arg("info").output().is_ok_and(|output| output.status.success()) {
        assert!(begun.elapsed() < Duration::from_secs(20), "pulseaudio does not start, so there is no sound to test");
        std::thread::sleep(Duration::from_millis(100));
    }
    server
}

/// Stands in for the program that Linux asks for files with when there is no desktop; it always gives the same file, or
/// the same folder.
fn dialog_program(path: &Path, folder: &Path) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o755).open(path).unwrap();
    let folder = folder.display();
    let answer = format!("*--directory*) echo '{folder}/compared';; *) echo '{folder}/saved.wav'");
    writeln!(file, "#!/bin/sh\ncase \"$*\" in {answer};; esac").unwrap();
}

fn settings(path: &Path) {
    let export = ExportChoice { kind: Format::Wav32f, ..ExportChoice::default() };
    let settings = Settings { volume: 1.0, seed_locked: true, theme: ThemeChoice::Dark, export, ..Settings::default() };
    SettingsFile::at(path).save(&settings).unwrap();
}
