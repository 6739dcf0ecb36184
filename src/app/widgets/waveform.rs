//! Waveforms: of the speech while it grows, and of a clip with the part of it that is used.

use std::ops::Range;

use eframe::egui::epaint::{BandPoint, BandShape};
use eframe::egui::{
    Align2, Color32, CursorIcon, Event, EventFilter, Key, Painter, Pos2, Rangef, Rect, Response, Role, Sense, Shape,
    Stroke, Ui, WidgetInfo, pos2, vec2,
};
use myna_engine::protocol::SAMPLE_RATE_HZ;

use super::button::focus_ring;
use crate::library::PEAKS_HZ;
use crate::player::{Peak, Take, gather};
use crate::theme::{self, RADIUS, palette};

/// Width of a column of a waveform, in points.
const COLUMN: f32 = 2.0;
/// Width that catches a handle, in points.
const GRIP: f32 = 12.0;
/// Height below a clip's wave for the stripes that show what is heard of it, in points.
const STRIPES: f32 = 11.0;
/// Least part of a clip that can be used, in seconds.
const LEAST_SECS: f32 = 0.5;

/// What the waveform of the speech shows.
#[derive(Debug)]
pub struct SpeechWave<'a> {
    /// The sound, if there is any.
    pub take: Option<&'a Take>,
    /// Its probable length while it is being made, in seconds.
    pub expected_secs: f32,
    /// Where the listener is, in seconds.
    pub position_secs: f32,
    /// Shown where there is no sound.
    pub empty: &'a str,
}

/// Minutes and seconds.
pub fn time_label(secs: f32) -> String {
    let tenths = (secs.max(0.0) * 10.0).round() as u32;
    format!("{}:{:02}.{}", tenths / 600, tenths / 10 % 60, tenths % 10)
}

/// The speech; where somebody wants to go, in seconds.
pub fn speech_wave(ui: &mut Ui, height: f32, wave: &SpeechWave<'_>) -> Option<f32> {
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), height), Sense::click_and_drag());
    let p = palette(ui);
    let secs = wave.take.map_or(0.0, Take::secs);
    let spoken = if secs > 0.0 {
        format!("Speech, {} of {}", time_label(wave.position_secs), time_label(secs))
    } else {
        "Speech, none yet".to_owned()
    };
    response.widget_info(|| WidgetInfo::labeled(Role::Slider, true, &spoken));
    let painter = ui.painter_at(rect.expand(2.0));
    painter.rect_filled(rect, RADIUS, p.ground);
    focus_ring(ui, &response, RADIUS);
    let inner = rect.shrink2(vec2(8.0, 6.0));
    let Some(take) = wave.take.filter(|take| !take.is_empty()) else {
        empty_wave(&painter, inner, wave.empty, p);
        return None;
    };
    let complete = take.is_complete();
    let shown_secs = if complete { secs } else { secs.max(wave.expected_secs) * 1.02 };
    let to_x = |s: f32| inner.left() + inner.width() * (s / shown_secs).clamp(0.0, 1.0);
    let (head, made) = (to_x(wave.position_secs.min(secs)), to_x(secs));
    if !complete {
        painter.hline(made..=inner.right(), inner.center().y, Stroke::new(1.0, p.line));
        // What lies ahead of the listener is what a stall of the engine would eat first.
        let ahead = Rect::from_x_y_ranges(head..=made, rect.y_range());
        painter.rect_filled(ahead, 0.0, p.accent_soft.gamma_multiply(0.6));
    }
    let peaks = take.columns((inner.width() / COLUMN) as usize, (shown_secs * SAMPLE_RATE_HZ as f32) as usize);
    marks(&painter, take, inner, rect, &to_x, p.faint);
    draw(&painter, inner, &peaks, p.wave, Rangef::new(head, inner.right() + 1.0));
    draw(&painter, inner, &peaks, p.accent, Rangef::new(inner.left() - 1.0, head));
    painter.vline(head, rect.y_range(), Stroke::new(1.5, p.accent_text));
    let to_secs = |pos: Pos2| (((pos.x - inner.left()) / inner.width()).clamp(0.0, 1.0) * shown_secs).min(secs);
    if let Some(pos) = response.hover_pos() {
        ui.ctx().set_cursor_icon(CursorIcon::PointingHand);
        let at = to_secs(pos);
        painter.vline(to_x(at), rect.y_range(), Stroke::new(1.0, p.faint));
        let left = to_x(at) < rect.right() - 60.0;
        let (anchor, gap) = if left { (Align2::LEFT_TOP, 5.0) } else { (Align2::RIGHT_TOP, -5.0) };
        painter.text(pos2(to_x(at) + gap, rect.top() + 3.0), anchor, time_label(at), theme::caption(), p.weak);
    }
    let pointed = response.interact_pointer_pos().filter(|_| response.clicked() || response.dragged());
    pointed.map(to_secs).or_else(|| arrows(ui, &response, wave.position_secs, secs))
}

fn empty_wave(painter: &Painter, inner: Rect, text: &str, p: &theme::Palette) {
    painter.hline(inner.x_range(), inner.center().y, Stroke::new(1.0, p.line));
    if text.is_empty() {
        return;
    }
    let galley = painter.layout_no_wrap(text.to_owned(), theme::body(), p.weak);
    let at = inner.center() - galley.size() / 2.0;
    painter.rect_filled(Rect::from_min_size(at, galley.size()).expand2(vec2(12.0, 4.0)), 0.0, p.ground);
    painter.galley(at, galley, p.weak);
}

/// Arrow keys move by a second, Home and End to the ends.
fn arrows(ui: &Ui, response: &Response, position: f32, secs: f32) -> Option<f32> {
    if !response.has_focus() {
        return None;
    }
    let filter = EventFilter { horizontal_arrows: true, ..EventFilter::default() };
    ui.memory_mut(|memory| memory.set_focus_lock_filter(response.id, filter));
    ui.input(|input| {
        let mut to = None;
        for event in &input.events {
            if let Event::Key { key, pressed: true, .. } = event {
                to = match key {
                    Key::ArrowLeft => Some((position - 1.0).max(0.0)),
                    Key::ArrowRight => Some((position + 1.0).min(secs)),
                    Key::Home => Some(0.0),
                    Key::End => Some(secs),
                    _ => to,
                };
            }
        }
        to
    })
}

fn marks(painter: &Painter, take: &Take, inner: Rect, rect: Rect, to_x: &dyn Fn(f32) -> f32, color: Color32) {
    let mut last = f32::NEG_INFINITY;
    for mark in take.marks().iter().skip(1) {
        let x = to_x(mark.start as f32 / SAMPLE_RATE_HZ as f32);
        if x - last > 3.0 && x < inner.right() {
            painter.vline(x, rect.top() + 2.0..=rect.top() + 9.0, Stroke::new(1.5, color));
            last = x;
        }
    }
}

/// Columns of peaks as one band, cut to `x`.
fn draw(painter: &Painter, rect: Rect, peaks: &[Peak], color: Color32, x: Rangef) {
    if x.min >= x.max {
        return;
    }
    let half = rect.height() / 2.0;
    let middle = rect.center().y;
    let points = peaks.iter().enumerate().map(|(i, peak)| {
        let at = rect.left() + (i as f32 + 0.5) * COLUMN;
        BandPoint::new(at, middle - stretch(peak.high) * half - 0.5..=middle - stretch(peak.low) * half + 0.5)
    });
    let band = BandShape::filled(points.collect(), color);
    let cut = Rect::from_x_y_ranges(x, rect.y_range()).intersect(painter.clip_rect());
    painter.with_clip_rect(cut).add(Shape::from(band));
}

/// Quiet speech should be seen too: the square root lifts it.
fn stretch(value: f32) -> f32 {
    value.signum() * value.abs().min(1.0).sqrt()
}

/// What the waveform of a clip shows.
#[derive(Debug)]
pub struct ClipWave<'a> {
    /// Its picture.
    pub peaks: &'a [Peak],
    /// Its length, in seconds.
    pub secs: f32,
    /// The part between the handles, in seconds.
    pub trim: Range<f32>,
    /// How much of that part gives the sound of the voice, in seconds.
    pub sound_secs: f32,
    /// How much of it gives the manner of speaking, in seconds.
    pub manner_secs: f32,
    /// Where it is being played, if it is.
    pub position_secs: Option<f32>,
}

/// The clip with its handles; the new part, and whether the hand has let go.
pub fn clip_wave(ui: &mut Ui, height: f32, wave: &ClipWave<'_>) -> Option<(Range<f32>, bool)> {
    let (rect, _) = ui.allocate_exact_size(vec2(ui.available_width(), height), Sense::hover());
    let p = palette(ui);
    let painter = ui.painter_at(rect.expand(4.0));
    painter.rect_filled(rect, RADIUS, p.ground);
    let mut inner = rect.shrink2(vec2(6.0, 4.0));
    inner.max.y -= STRIPES;
    let secs = wave.secs.max(0.01);
    let to_x = |s: f32| inner.left() + inner.width() * (s / secs).clamp(0.0, 1.0);
    let peaks = gather(wave.peaks, (inner.width() / COLUMN) as usize, f64::from(secs) * f64::from(PEAKS_HZ));
    let (from, to) = (to_x(wave.trim.start), to_x(wave.trim.end));
    let heard = to_x((wave.trim.start + wave.sound_secs.max(wave.manner_secs)).min(wave.trim.end));
    painter.rect_filled(Rect::from_x_y_ranges(from..=heard, rect.y_range()), 4.0, p.accent_soft);
    draw(&painter, inner, &peaks, p.faint, Rangef::new(inner.left() - 1.0, from));
    draw(&painter, inner, &peaks, p.accent, Rangef::new(from, heard));
    draw(&painter, inner, &peaks, p.wave, Rangef::new(heard, to));
    draw(&painter, inner, &peaks, p.faint, Rangef::new(to, inner.right() + 1.0));
    for (row, (heard_secs, color)) in [(wave.sound_secs, p.accent), (wave.manner_secs, p.weak)].into_iter().enumerate()
    {
        let to = to_x((wave.trim.start + heard_secs).min(wave.trim.end));
        let stripe = Rect::from_min_max(pos2(from, 0.0), pos2(to, 3.0));
        painter.rect_filled(stripe.translate(vec2(0.0, inner.bottom() + 3.0 + 5.0 * row as f32)), 1.5, color);
    }
    if let Some(position) = wave.position_secs {
        painter.vline(to_x(position), rect.y_range(), Stroke::new(1.5, p.text));
    }
    let mut trim = wave.trim.clone();
    let mut changed = None;
    for (i, (name, x)) in [("Start of the used part", from), ("End of the used part", to)].into_iter().enumerate() {
        let grip = Rect::from_center_size(pos2(x, rect.center().y), vec2(GRIP, rect.height()));
        let id = ui.scope_id().with(("trim", i));
        let response = ui.interact(grip, id, Sense::click_and_drag()).on_hover_cursor(CursorIcon::ResizeHorizontal);
        let at = if i == 0 { wave.trim.start } else { wave.trim.end };
        response.widget_info(|| WidgetInfo::slider(true, f64::from(at), name));
        let held = response.hovered() || response.dragged() || response.has_focus();
        let (width, color) = (if held { 3.0 } else { 2.0 }, if response.has_focus() { p.accent } else { p.text });
        painter.vline(x, rect.y_range(), Stroke::new(width, color));
        painter.circle_filled(pos2(x, rect.center().y), width + 1.5, color);
        let dragged = response.dragged().then(|| response.interact_pointer_pos()).flatten();
        let wanted = dragged.map(|pos| ((pos.x - inner.left()) / inner.width()) * secs);
        if let Some(wanted) = wanted.or_else(|| arrows(ui, &response, at, secs)) {
            if i == 0 {
                trim.start = wanted.clamp(0.0, (trim.end - LEAST_SECS).max(0.0));
            } else {
                trim.end = wanted.clamp((trim.start + LEAST_SECS).min(secs), secs);
            }
            changed = Some(!response.dragged());
        } else if response.drag_stopped() {
            changed = Some(true);
        }
    }
    changed.map(|done| (trim, done))
}
