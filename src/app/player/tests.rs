//! The player without a sound card: the test asks for every frame itself, and turns the clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use crossbeam_channel::{Sender, bounded};
use myna_engine::protocol::AudioChunk;

use super::callback::{Callback, FADE_SECS, Fault, Shared};
use super::feeder::Feeder;
use super::output::{DeviceName, ListDevices, Opened, Output, Stream};
use super::{Command, DeviceState, PlayState, Take};

/// What the card has been given, and what it is like.
#[derive(Default)]
struct Card {
    callback: Option<Callback>,
    shared: Option<Arc<Shared>>,
    rate_hz: u32,
    absent: bool,
    opened: Vec<Option<String>>,
    running: bool,
}

#[derive(Clone)]
struct Bench(Arc<Mutex<Card>>);

impl Stream for Bench {
    fn run(&self, running: bool) {
        self.0.lock().unwrap().running = running;
    }
}

impl Output for Bench {
    fn lister(&self) -> ListDevices {
        Arc::new(|| vec![DeviceName { id: "a".into(), name: "A".into() }])
    }

    fn open(
        &mut self,
        id: Option<&str>,
        shared: &Arc<Shared>,
        make: &mut dyn FnMut(u32) -> Callback,
    ) -> Result<Opened> {
        let mut card = self.0.lock().unwrap();
        if card.absent || id == Some("unplugged") {
            bail!("not connected");
        }
        card.running = true;
        card.opened.push(id.map(str::to_owned));
        card.callback = Some(make(card.rate_hz));
        card.shared = Some(Arc::clone(shared));
        Ok(Opened { rate_hz: card.rate_hz, name: "card".into(), stream: Box::new(self.clone()) })
    }
}

/// A feeder, a card and a clock.
struct Rig {
    feeder: Feeder,
    card: Arc<Mutex<Card>>,
    now: Instant,
}

impl Rig {
    fn new(rate_hz: u32) -> Self {
        let card = Arc::new(Mutex::new(Card { rate_hz, ..Card::default() }));
        let feeder = Feeder::new(Box::new(Bench(card.clone())), None, 1.0);
        Self { feeder, card, now: Instant::now() }
    }

    fn tell(&mut self, command: Command) {
        assert!(self.feeder.command(command, self.now));
        self.feeder.tick(self.now);
    }

    fn begin(&mut self) -> (Arc<Take>, Sender<AudioChunk>) {
        let (sender, audio) = bounded(1000);
        let take = Take::new();
        self.tell(Command::Begin { take: take.clone(), audio, pressed: Some(self.now), expected_secs: 1.0 });
        (take, sender)
    }

    /// Ten milliseconds on the clock, and as many frames asked for.
    fn ask(&mut self) -> Vec<f32> {
        self.feeder.tick(self.now);
        let rate_hz = self.card.lock().unwrap().rate_hz;
        let mut out = vec![0.0; rate_hz as usize / 100 * 2];
        self.card.lock().unwrap().callback.as_mut().unwrap().render(&mut out, 2);
        self.now += Duration::from_millis(10);
        self.feeder.tick(self.now);
        out.chunks(2)
            .map(|frame| {
                assert_eq!(frame[0], frame[1], "both channels play the same");
                frame[0]
            })
            .collect()
    }

    fn listen(&mut self, times: usize) -> Vec<f32> {
        (0..times).flat_map(|_| self.ask()).collect()
    }

    fn state(&self) -> PlayState {
        self.feeder.status().state
    }
}

/// Equal, without printing thousands of samples where they are not.
#[track_caller]
fn same(heard: &[f32], wanted: &[f32]) {
    assert_eq!(heard.len(), wanted.len());
    if let Some(at) = heard.iter().zip(wanted).position(|(a, b)| a != b) {
        panic!("sample {at} is {} instead of {}", heard[at], wanted[at]);
    }
}

#[track_caller]
fn silent(heard: &[f32]) {
    assert_eq!(heard.iter().position(|s| *s != 0.0), None, "not silent");
}

fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.05).sin() * 0.5 * (i as f32 / 240.0).min(1.0)).collect()
}

fn send(sender: &Sender<AudioChunk>, samples: &[f32]) {
    for part in samples.chunks(4800) {
        sender.send(AudioChunk { samples: part.to_vec(), sentence: 0, text_range: 0..1 }).unwrap();
    }
}

fn largest_step(samples: &[f32]) -> f32 {
    samples.windows(2).map(|w| (w[1] - w[0]).abs()).fold(0.0, f32::max)
}

#[test]
fn at_the_engines_rate_every_sample_is_heard_exactly_once() {
    let mut rig = Rig::new(24_000);
    let (take, sender) = rig.begin();
    let sound = wave(30_000);
    send(&sender, &sound);
    drop(sender);
    let heard = rig.listen(130);
    same(&heard[..30_000], &sound[..]);
    assert!(heard[30_000..].iter().all(|s| s.abs() <= sound[29_999].abs()));
    silent(&heard[30_000 + 240..]);
    assert_eq!((rig.state(), rig.feeder.status().underruns), (PlayState::Ended, 0));
    assert_eq!(take.to_pcm().samples, sound);
}

#[test]
fn at_another_rate_the_whole_is_the_resampling_of_the_whole() {
    for rate_hz in [44_100, 48_000] {
        let mut rig = Rig::new(rate_hz);
        let (_, sender) = rig.begin();
        let sound = wave(24_000);
        send(&sender, &sound);
        drop(sender);
        let heard = rig.listen(105);
        let want = myna_engine::dsp::resample::resample(&sound, 24_000, rate_hz).unwrap();
        same(&heard[..want.len()], &want[..]);
        assert_eq!(rig.state(), PlayState::Ended);
    }
}

#[test]
fn the_first_chunk_is_heard_before_the_second_is_made_and_the_wait_is_measured() {
    let mut rig = Rig::new(48_000);
    let (_, sender) = rig.begin();
    let pressed = rig.now;
    rig.listen(5);
    assert_eq!((rig.state(), rig.feeder.status().underruns), (PlayState::Buffering, 0));
    send(&sender, &wave(4800));
    let heard = rig.ask();
    assert!(heard.iter().any(|s| *s != 0.0));
    let first = rig.feeder.status().first_audio.expect("measured");
    // The callback reads the real clock, which ran on for a moment since.
    assert!(first <= pressed.elapsed(), "{first:?}");
    assert_eq!(rig.state(), PlayState::Playing);
}

#[test]
fn an_underrun_is_counted_once_fades_and_is_recovered_from() {
    let mut rig = Rig::new(24_000);
    let (take, sender) = rig.begin();
    // Ends at a peak, where a cut would click loudest.
    let mut sound = wave(4800);
    let peak = (4700..4800).max_by(|&a, &b| sound[a].total_cmp(&sound[b])).unwrap();
    sound.truncate(peak + 1);
    send(&sender, &sound);
    let mut heard = rig.listen(60);
    assert_eq!(rig.feeder.status().underruns, 1, "however long it lasts");
    assert_eq!(rig.state(), PlayState::Buffering);
    let more = vec![0.4; 12_000];
    send(&sender, &more);
    drop(sender);
    heard.extend(rig.listen(60));
    assert!(largest_step(&heard) < 0.03, "a click of {}", largest_step(&heard));
    let fade = (FADE_SECS * 24_000.0) as usize;
    let full = heard.iter().rev().filter(|s| **s == 0.4).count();
    assert!(full >= 12_000 - fade - 1, "only the fade is quieter, {full}");
    assert_eq!((rig.state(), take.len()), (PlayState::Ended, sound.len() + 12_000));
}

#[test]
fn pausing_loses_nothing_and_does_not_click() {
    let mut rig = Rig::new(24_000);
    let (_, sender) = rig.begin();
    let sound = wave(24_000);
    send(&sender, &sound);
    drop(sender);
    let mut heard = rig.listen(33);
    let n = heard.len();
    same(&heard, &sound[..n]);
    rig.tell(Command::Pause);
    assert_eq!(rig.state(), PlayState::Paused);
    let silence = rig.listen(20);
    silent(&silence[240..]);
    let position = rig.feeder.status().position_secs;
    assert!((position - n as f32 / 24_000.0).abs() < 1e-3);
    rig.tell(Command::Play);
    let rest = rig.listen(80);
    let fade = (FADE_SECS * 24_000.0) as usize + 1;
    same(&rest[fade..24_000 - n], &sound[n + fade..]);
    heard.extend(silence);
    heard.extend(rest);
    assert!(largest_step(&heard) < 0.05, "a click of {}", largest_step(&heard));
}

#[test]
fn seeking_plays_from_there_without_a_click_and_replay_begins_anew() {
    let mut rig = Rig::new(24_000);
    let (_, sender) = rig.begin();
    let sound = wave(48_000);
    send(&sender, &sound);
    drop(sender);
    let mut heard = rig.listen(20);
    rig.tell(Command::Seek(36_000));
    let after = rig.listen(31);
    let fade = (FADE_SECS * 24_000.0) as usize + 1;
    // The ring was full of what is no longer wanted: one request goes by while it is emptied.
    same(&after[240 + fade..], &sound[36_000 + fade..36_000 + after.len() - 240]);
    heard.extend(after);
    assert!(largest_step(&heard) < 0.06, "a click of {}", largest_step(&heard));
    rig.listen(40);
    assert_eq!(rig.state(), PlayState::Ended);
    rig.tell(Command::Play);
    let again = rig.listen(205);
    same(&again[..48_000], &sound[..]);
    assert_eq!((rig.state(), rig.feeder.status().underruns), (PlayState::Ended, 0));
    rig.tell(Command::Seek(100_000_000));
    assert_eq!(rig.feeder.status().position_secs, 2.0);
}

#[test]
fn stopping_goes_back_to_the_start_while_the_rest_still_arrives() {
    let mut rig = Rig::new(24_000);
    let (take, sender) = rig.begin();
    send(&sender, &wave(12_000));
    rig.listen(10);
    rig.tell(Command::Stop);
    send(&sender, &wave(2400));
    let silence = rig.listen(10);
    silent(&silence[240..]);
    assert_eq!((rig.feeder.status().position_secs, take.len()), (0.0, 14_400));
    drop(sender);
    rig.listen(1);
    rig.tell(Command::Play);
    same(&rig.listen(60)[..12_000], &wave(12_000)[..]);
}

#[test]
fn a_new_take_leaves_nothing_of_the_old_one() {
    let mut rig = Rig::new(24_000);
    let (_, sender) = rig.begin();
    send(&sender, &vec![0.4; 24_000]);
    rig.listen(10);
    let (_, next) = rig.begin();
    let quiet = rig.listen(10);
    silent(&quiet[240..]);
    send(&next, &wave(4800));
    drop(next);
    let heard = rig.listen(30);
    let start = heard.iter().position(|s| *s != 0.0).unwrap();
    same(&heard[start..start + 4700], &wave(4800)[1..4701]);
}

#[test]
fn volume_changes_glide() {
    let mut rig = Rig::new(24_000);
    let (_, sender) = rig.begin();
    send(&sender, &vec![0.5; 24_000]);
    drop(sender);
    let mut heard = rig.listen(5);
    rig.tell(Command::Volume(0.2));
    heard.extend(rig.listen(5));
    assert!((heard[2399] - 0.1).abs() < 1e-5);
    assert!(largest_step(&heard[1..]) < 0.01);
}

#[test]
fn a_device_that_goes_away_is_replaced_and_the_place_is_kept() {
    let mut rig = Rig::new(24_000);
    rig.tell(Command::Device(Some("a".into())));
    let (_, sender) = rig.begin();
    let sound = wave(24_000);
    send(&sender, &sound);
    drop(sender);
    let n = rig.listen(30).len();
    rig.card.lock().unwrap().rate_hz = 48_000;
    let shared = rig.card.lock().unwrap().shared.clone().unwrap();
    shared.report(Fault::Lost);
    let rest = rig.listen(90);
    assert_eq!(rig.card.lock().unwrap().opened.len(), 2, "opened again");
    let want = myna_engine::dsp::resample::resample(&sound[n..], 24_000, 48_000).unwrap();
    same(&rest[480..want.len()], &want[480..]);
    assert_eq!(rig.state(), PlayState::Ended);
    // Many harmless reports change nothing.
    for _ in 0..3000 {
        shared.report(Fault::Glitch);
    }
    rig.listen(3);
    assert_eq!(rig.card.lock().unwrap().opened.len(), 2);
}

#[test]
fn a_device_that_stops_asking_is_opened_again() {
    let mut rig = Rig::new(24_000);
    let (_, sender) = rig.begin();
    send(&sender, &wave(48_000));
    rig.listen(10);
    rig.now += Duration::from_secs(2);
    rig.feeder.tick(rig.now);
    assert_eq!(rig.card.lock().unwrap().opened.len(), 2);
}

#[test]
fn a_chosen_device_that_is_unplugged_gives_way_to_the_systems_own() {
    let mut rig = Rig::new(24_000);
    rig.tell(Command::Device(Some("unplugged".into())));
    assert_eq!(rig.card.lock().unwrap().opened, [None]);
    assert!(matches!(rig.feeder.status().device, DeviceState::Ready { .. }));
}

#[test]
fn without_a_device_everything_is_kept_and_heard_when_one_appears() {
    let mut rig = Rig::new(24_000);
    rig.card.lock().unwrap().absent = true;
    let (take, sender) = rig.begin();
    assert_eq!(rig.feeder.status().device, DeviceState::Missing { why: "not connected".into() });
    send(&sender, &wave(4800));
    drop(sender);
    rig.feeder.tick(rig.now);
    assert!(take.is_complete());
    assert_eq!(take.len(), 4800);
    rig.card.lock().unwrap().absent = false;
    rig.now += Duration::from_secs(3);
    rig.feeder.tick(rig.now);
    assert!(matches!(rig.feeder.status().device, DeviceState::Ready { .. }));
    same(&rig.listen(30)[..4800], &wave(4800)[..]);
}

#[test]
fn a_finished_take_can_be_taken_up_with_and_without_playing() {
    let mut rig = Rig::new(24_000);
    let take = Take::from_samples(&wave(4800));
    rig.tell(Command::Load { take: take.clone(), twin: None, play: false });
    silent(&rig.listen(5));
    assert_eq!(rig.state(), PlayState::Paused);
    rig.tell(Command::Load { take, twin: None, play: true });
    same(&rig.listen(25)[..4800], &wave(4800)[..]);
    rig.tell(Command::Clear);
    assert_eq!((rig.state(), rig.feeder.audio().is_none()), (PlayState::Empty, true));
}

#[test]
fn a_device_that_rests_is_woken_when_sound_is_asked_for_and_not_when_it_is_there() {
    let mut rig = Rig::new(24_000);
    let (_, sender) = rig.begin();
    send(&sender, &wave(2400));
    drop(sender);
    rig.listen(20);
    assert_eq!(rig.state(), PlayState::Ended);
    rig.now += Duration::from_secs(21);
    rig.feeder.tick(rig.now);
    assert!(!rig.card.lock().unwrap().running, "nothing is played, so it rests");
    let _waiting = rig.begin();
    assert!(rig.card.lock().unwrap().running);
    assert_eq!(rig.state(), PlayState::Buffering);
}

#[test]
fn the_sides_of_a_pair_change_on_the_spot_without_a_gap_or_a_click() {
    for rate_hz in [24_000, 44_100, 48_000] {
        let mut rig = Rig::new(rate_hz);
        let sides = [wave(48_000), wave(48_000).iter().map(|s| s * 0.8 + 0.05).collect::<Vec<f32>>()];
        let [take, twin] = [0, 1].map(|i| Take::from_samples(&sides[i]));
        rig.tell(Command::Load { take, twin: Some(twin), play: true });
        let mut heard = Vec::new();
        // Begins with the first; what it changes to, after so many times ten milliseconds, each time at once.
        for (second, times) in [(false, 31), (true, 17), (false, 3), (true, 40), (true, 5), (false, 120)] {
            rig.tell(Command::Second(second));
            heard.push((second, rig.listen(times)));
        }
        let wanted = [0, 1].map(|i| myna_engine::dsp::resample::resample(&sides[i], 24_000, rate_hz).unwrap());
        let fade = (FADE_SECS * rate_hz as f32) as usize + 1;
        let mut at = 0;
        for (second, part) in &heard {
            let wanted = &wanted[usize::from(*second)];
            let rest = part.len().min(wanted.len() - at);
            same(&part[fade..rest], &wanted[at + fade..at + rest]);
            at += rest;
        }
        let all: Vec<f32> = heard.into_iter().flat_map(|(_, part)| part).collect();
        let natural = wanted.iter().map(|side| largest_step(side)).fold(0.0, f32::max);
        assert!(largest_step(&all) < natural + 0.12 / fade as f32, "a click of {}", largest_step(&all));
        assert_eq!((rig.state(), rig.feeder.status().underruns), (PlayState::Ended, 0));
    }
}

#[test]
fn a_side_that_was_chosen_stays_chosen_when_the_device_changes() {
    let mut rig = Rig::new(24_000);
    let [take, twin] = [0.2, 0.3].map(|level| Take::from_samples(&vec![level; 24_000]));
    rig.tell(Command::Second(true));
    rig.tell(Command::Load { take, twin: Some(twin), play: true });
    assert!(rig.listen(10)[240..].iter().all(|s| *s == 0.3));
    let shared = rig.card.lock().unwrap().shared.clone().unwrap();
    shared.report(Fault::Lost);
    assert!(rig.listen(10)[480..].iter().all(|s| *s == 0.3));
}
