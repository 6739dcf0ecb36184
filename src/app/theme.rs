//! Every colour, size and font of the window, and nowhere else.
//!
//! Warm neutrals and one accent, the saffron of a myna's beak. Spacing follows a grid of four points.

use std::collections::BTreeMap;
use std::sync::Arc;

use eframe::egui::epaint::Shadow;
use eframe::egui::style::{HandleShape, ScrollStyle, Selection, TextCursorStyle, WidgetVisuals, Widgets};
use eframe::egui::{
    Color32, Context, CornerRadius, FontData, FontDefinitions, FontFamily, FontId, Margin, Stroke, Style, TextStyle,
    Theme, Ui, Vec2, Visuals, vec2,
};

/// The colours of one theme.
#[derive(Debug)]
pub struct Palette {
    /// Behind everything.
    pub ground: Color32,
    /// Side panels and the player.
    pub panel: Color32,
    /// Cards, fields and quiet buttons.
    pub raised: Color32,
    /// The same under the pointer.
    pub hover: Color32,
    /// Hairlines.
    pub line: Color32,
    /// What is read.
    pub text: Color32,
    /// What explains.
    pub weak: Color32,
    /// What is barely there: disabled things, tick marks.
    pub faint: Color32,
    /// The one accent.
    pub accent: Color32,
    /// The accent under the pointer.
    pub accent_hover: Color32,
    /// The accent as text on the ground.
    pub accent_text: Color32,
    /// Text on the accent.
    pub on_accent: Color32,
    /// A breath of the accent: selection.
    pub accent_soft: Color32,
    /// The opposite of the accent, where there is more and less of something.
    pub cool: Color32,
    /// All is well.
    pub good: Color32,
    /// Worth a look.
    pub warn: Color32,
    /// Wrong.
    pub bad: Color32,
    /// Behind an error.
    pub bad_soft: Color32,
    /// Sound not yet heard.
    pub wave: Color32,
    /// Colours of the stages voice, prefill, T3, flow, vocoder and watermark: one hue, falling in strength.
    pub stages: [Color32; 6],
}

const DARK: Palette = Palette {
    ground: Color32::from_rgb(0x14, 0x14, 0x16),
    panel: Color32::from_rgb(0x1a, 0x1a, 0x1d),
    raised: Color32::from_rgb(0x25, 0x25, 0x29),
    hover: Color32::from_rgb(0x2f, 0x2f, 0x34),
    line: Color32::from_rgb(0x2c, 0x2c, 0x31),
    text: Color32::from_rgb(0xec, 0xea, 0xe6),
    weak: Color32::from_rgb(0xa3, 0x9f, 0x98),
    faint: Color32::from_rgb(0x5d, 0x5b, 0x58),
    accent: Color32::from_rgb(0xf0, 0xa8, 0x30),
    accent_hover: Color32::from_rgb(0xf8, 0xbb, 0x54),
    accent_text: Color32::from_rgb(0xf3, 0xb3, 0x4c),
    on_accent: Color32::from_rgb(0x24, 0x19, 0x05),
    accent_soft: Color32::from_rgb(0x3a, 0x2f, 0x1c),
    cool: Color32::from_rgb(0x6c, 0xa9, 0xe8),
    good: Color32::from_rgb(0x7f, 0xb7, 0x85),
    warn: Color32::from_rgb(0xe0, 0xb0, 0x5a),
    bad: Color32::from_rgb(0xf0, 0x86, 0x78),
    bad_soft: Color32::from_rgb(0x3a, 0x22, 0x20),
    wave: Color32::from_rgb(0x74, 0x71, 0x6c),
    stages: [
        Color32::from_rgb(0x6a, 0x67, 0x62),
        Color32::from_rgb(0x8f, 0x76, 0x4a),
        Color32::from_rgb(0xf0, 0xa8, 0x30),
        Color32::from_rgb(0xc9, 0x8f, 0x38),
        Color32::from_rgb(0xa2, 0x7b, 0x40),
        Color32::from_rgb(0x52, 0x50, 0x4c),
    ],
};

const LIGHT: Palette = Palette {
    ground: Color32::from_rgb(0xfb, 0xfa, 0xf8),
    panel: Color32::from_rgb(0xf3, 0xf1, 0xed),
    raised: Color32::from_rgb(0xff, 0xff, 0xff),
    hover: Color32::from_rgb(0xea, 0xe6, 0xdf),
    line: Color32::from_rgb(0xe2, 0xde, 0xd6),
    text: Color32::from_rgb(0x22, 0x20, 0x1d),
    weak: Color32::from_rgb(0x6b, 0x66, 0x5e),
    faint: Color32::from_rgb(0xb3, 0xad, 0xa3),
    accent: Color32::from_rgb(0xea, 0xa0, 0x28),
    accent_hover: Color32::from_rgb(0xf2, 0xb1, 0x48),
    accent_text: Color32::from_rgb(0x9a, 0x5f, 0x06),
    on_accent: Color32::from_rgb(0x2a, 0x1c, 0x04),
    accent_soft: Color32::from_rgb(0xf8, 0xea, 0xd0),
    cool: Color32::from_rgb(0x2a, 0x6b, 0xb0),
    good: Color32::from_rgb(0x3d, 0x7c, 0x47),
    warn: Color32::from_rgb(0x96, 0x62, 0x0b),
    bad: Color32::from_rgb(0xb4, 0x3b, 0x2b),
    bad_soft: Color32::from_rgb(0xfb, 0xe7, 0xe2),
    wave: Color32::from_rgb(0xa5, 0x9f, 0x95),
    stages: [
        Color32::from_rgb(0x9d, 0x97, 0x8d),
        Color32::from_rgb(0xd6, 0xb6, 0x7c),
        Color32::from_rgb(0xe6, 0x98, 0x1c),
        Color32::from_rgb(0xc9, 0x85, 0x1a),
        Color32::from_rgb(0xa6, 0x72, 0x20),
        Color32::from_rgb(0xc4, 0xbe, 0xb4),
    ],
};

/// The colours in use.
pub fn palette(ui: &Ui) -> &'static Palette {
    palette_of(ui.visuals().dark_mode)
}

/// The colours of the dark or of the light theme.
pub fn palette_of(dark: bool) -> &'static Palette {
    if dark { &DARK } else { &LIGHT }
}

/// Space between things that belong together, in points.
pub const GAP: f32 = 8.0;
/// Space between groups, in points.
pub const SECTION: f32 = 20.0;
/// Margin of panels, in points.
pub const MARGIN: i8 = 16;
/// Part of a panel's margin that belongs to its scroll bar.
pub const SCROLL_MARGIN: i8 = 10;
/// Roundness of controls.
pub const RADIUS: CornerRadius = CornerRadius::same(6);
/// Height of a usual control, in points.
pub const CONTROL: f32 = 30.0;
/// Height of the bar at the top, in points.
pub const TOP_BAR: f32 = 48.0;
/// Width of the voice panel, in points.
pub const VOICE_PANEL: f32 = 272.0;
/// Width of the settings panel, in points.
pub const SETTINGS_PANEL: f32 = 240.0;
/// Smallest window, in points.
pub const MIN_WINDOW: Vec2 = vec2(900.0, 600.0);
/// Windows wider than this show the settings unasked, in points.
pub const WIDE_WINDOW: f32 = 1160.0;
const SEMIBOLD: &str = "semibold";

/// Height of the player in a window of this height, in points: what a tall window has to spare goes to the wave.
pub fn player_panel(window_height: f32) -> f32 {
    184.0 + ((window_height - 800.0) * 0.12).clamp(0.0, 120.0).round()
}

/// A heavier cut, for headings and the main button.
pub fn semibold(size: f32) -> FontId {
    FontId::new(size, FontFamily::Name(SEMIBOLD.into()))
}

/// Labels of groups.
pub fn section() -> FontId {
    semibold(12.5)
}

/// The name of the program.
pub fn wordmark() -> FontId {
    semibold(17.0)
}

/// Figures that are looked at.
pub fn figure() -> FontId {
    semibold(15.0)
}

/// Captions.
pub fn caption() -> FontId {
    FontId::proportional(12.0)
}

/// Body text.
pub fn body() -> FontId {
    FontId::proportional(13.5)
}

/// How the editor sets its text.
#[derive(Debug, Clone)]
pub struct EditorType {
    /// What is typed to be spoken.
    pub font: FontId,
    /// Distance of lines, in points.
    pub line: f32,
    /// Longest comfortable line, in points.
    pub measure: f32,
}

/// The editor's type in an area of this width, in points: larger on a wide screen, which is further away.
pub fn editor(width: f32) -> EditorType {
    let size = if width > 1400.0 { 24.0 } else { 18.0 };
    EditorType { font: FontId::proportional(size), line: (size * 1.55).round(), measure: size * 42.0 }
}

/// Thin sliders with a small handle and the accent behind it, for what follows in `ui`.
pub fn slim_slider(ui: &mut Ui) {
    let p = palette(ui);
    ui.spacing_mut().interact_size.y = 20.0;
    let visuals = ui.visuals_mut();
    visuals.selection.bg_fill = p.accent;
    for widget in [&mut visuals.widgets.inactive, &mut visuals.widgets.hovered, &mut visuals.widgets.active] {
        widget.fg_stroke = Stroke::new(1.5, p.accent);
    }
    visuals.widgets.inactive.bg_fill = p.hover;
}

/// Fonts and both themes; call once.
pub fn install(ctx: &Context) {
    ctx.set_fonts(fonts());
    ctx.set_style_of(Theme::Dark, style(&DARK, true));
    ctx.set_style_of(Theme::Light, style(&LIGHT, false));
}

fn fonts() -> FontDefinitions {
    let mut fonts = FontDefinitions::default();
    let regular = FontData::from_static(include_bytes!("../../assets/fonts/Inter-Regular.otf"));
    let heavy = FontData::from_static(include_bytes!("../../assets/fonts/Inter-SemiBold.otf"));
    fonts.font_data.insert("inter".to_owned(), Arc::new(regular));
    fonts.font_data.insert("inter-semibold".to_owned(), Arc::new(heavy));
    let fallback = fonts.families.get(&FontFamily::Proportional).cloned().unwrap_or_default();
    let chain = |first: &str| std::iter::once(first.to_owned()).chain(fallback.iter().cloned()).collect::<Vec<_>>();
    fonts.families.insert(FontFamily::Name(SEMIBOLD.into()), chain("inter-semibold"));
    fonts.families.insert(FontFamily::Proportional, chain("inter"));
    fonts
}

fn style(p: &Palette, dark: bool) -> Style {
    let mut style = Style { visuals: visuals(p, dark), ..Style::default() };
    style.text_styles = BTreeMap::from([
        (TextStyle::Small, caption()),
        (TextStyle::Body, body()),
        (TextStyle::Button, body()),
        (TextStyle::Heading, semibold(16.0)),
        (TextStyle::Monospace, FontId::monospace(12.5)),
    ]);
    style.spacing.item_spacing = vec2(GAP, GAP);
    style.spacing.button_padding = vec2(12.0, 6.0);
    style.spacing.interact_size = vec2(CONTROL, CONTROL);
    style.spacing.slider_rail_height = 4.0;
    style.spacing.slider_width = SETTINGS_PANEL - 96.0;
    style.spacing.menu_margin = Margin::same(6);
    style.spacing.scroll = ScrollStyle::floating();
    style.interaction.selectable_labels = false;
    style.interaction.tooltip_delay = 0.4;
    style.animation_time = 0.1;
    style
}

fn visuals(p: &Palette, dark: bool) -> Visuals {
    let widget = |fill: Color32, stroke: Color32, text: Color32| WidgetVisuals {
        bg_fill: fill,
        weak_bg_fill: fill,
        bg_stroke: Stroke::new(1.0, stroke),
        corner_radius: RADIUS,
        fg_stroke: Stroke::new(1.0, text),
        expansion: 0.0,
    };
    let shadow =
        Shadow { offset: [0, 6], blur: 20, spread: 0, color: Color32::from_black_alpha(if dark { 110 } else { 40 }) };
    Visuals {
        dark_mode: dark,
        override_text_color: None,
        weak_text_color: Some(p.weak),
        widgets: Widgets {
            noninteractive: widget(p.panel, p.line, p.text),
            inactive: widget(p.raised, p.line, p.text),
            hovered: widget(p.hover, p.faint, p.text),
            active: widget(p.hover, p.accent, p.text),
            open: widget(p.hover, p.line, p.text),
        },
        selection: Selection { bg_fill: p.accent_soft, stroke: Stroke::new(1.0, p.accent_text) },
        hyperlink_color: p.accent_text,
        faint_bg_color: p.panel,
        extreme_bg_color: p.ground,
        code_bg_color: p.raised,
        warn_fg_color: p.warn,
        error_fg_color: p.bad,
        window_corner_radius: CornerRadius::same(10),
        menu_corner_radius: CornerRadius::same(8),
        window_shadow: shadow,
        popup_shadow: shadow,
        window_fill: p.panel,
        window_stroke: Stroke::new(1.0, p.line),
        panel_fill: p.ground,
        slider_trailing_fill: true,
        handle_shape: HandleShape::Circle,
        text_cursor: TextCursorStyle { stroke: Stroke::new(2.0, p.accent), blink: false, ..TextCursorStyle::default() },
        ..if dark { Visuals::dark() } else { Visuals::light() }
    }
}
