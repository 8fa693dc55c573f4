//! Tables of text. On a terminal, a table is not wider than the terminal; otherwise no value is cut.
//!
//! The crate comfy-table breaks long values over several lines; these tables cut them, and leave out
//! columns that do not fit.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::escape_for_terminal;
use super::terminal::{Color, Colors};

const GAP: &str = "  ";
const ELLIPSIS: char = '…';

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    header: &'static str,
    /// Values of an elastic column can be cut to this width.
    min_width: Option<usize>,
    is_optional: bool,
    is_right_aligned: bool,
}

impl Column {
    /// A column whose values are never cut.
    pub(super) const fn new(header: &'static str) -> Self {
        Self {
            header,
            min_width: None,
            is_optional: false,
            is_right_aligned: false,
        }
    }

    /// A column whose values can be cut on a terminal, but not to less than `min_width` columns of
    /// the terminal.
    pub(super) const fn elastic(header: &'static str, min_width: usize) -> Self {
        let mut column = Self::new(header);
        column.min_width = Some(min_width);
        column
    }

    /// Leaves the column out if the terminal is too narrow. The last optional column is left out first.
    pub(super) const fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Aligns the values on the right, for numbers.
    pub(super) const fn right_aligned(mut self) -> Self {
        self.is_right_aligned = true;
        self
    }
}

/// A value of a table, without control characters.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    text: String,
    color: Option<Color>,
}

impl Cell {
    pub(super) fn new(text: &str) -> Self {
        Self {
            text: escape_for_terminal(text),
            color: None,
        }
    }

    pub(super) fn colored(text: &str, color: Color) -> Self {
        Self {
            color: Some(color),
            ..Self::new(text)
        }
    }
}

/// A table that is printed in one or several parts.
pub(super) struct Table {
    columns: Vec<Column>,
    /// Width of the longest value of each column, of all parts.
    natural_widths: Vec<usize>,
    has_header: bool,
    colors: Colors,
    /// Width of the terminal. `None` if the output is not a terminal.
    max_width: Option<usize>,
}

impl Table {
    pub(super) fn new(columns: &[Column], colors: Colors, max_width: Option<usize>) -> Self {
        Self {
            columns: columns.to_vec(),
            natural_widths: columns.iter().map(|column| column.header.width()).collect(),
            has_header: columns.iter().any(|column| !column.header.is_empty()),
            colors,
            max_width,
        }
    }

    /// Returns the header and these rows as text. Later calls return only further rows.
    pub(super) fn render(&mut self, rows: &[Vec<Cell>]) -> String {
        for row in rows {
            for (width, cell) in self.natural_widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.width());
            }
        }
        let layout = self.layout();
        let mut text = String::new();
        if std::mem::take(&mut self.has_header) {
            let header: Vec<Cell> = self.columns.iter().map(|c| Cell::new(c.header)).collect();
            self.push_line(&mut text, &layout, &header);
        }
        for row in rows {
            self.push_line(&mut text, &layout, row);
        }
        text
    }

    /// Returns the index and the width of each column that fits.
    fn layout(&self) -> Vec<(usize, usize)> {
        let natural = self.natural_widths.iter().copied().enumerate();
        let Some(max_width) = self.max_width else {
            return natural.collect();
        };
        let mut layout: Vec<_> = natural
            .map(|(i, width)| (i, width.min(max_width)))
            .collect();
        let min_width = |&(i, width): &(usize, usize)| {
            let min_width = self.columns[i].min_width;
            min_width.map_or(width, |min_width| min_width.min(width))
        };
        while total_width(layout.iter().map(min_width)) > max_width {
            let is_optional = |(i, _): &(usize, usize)| self.columns[*i].is_optional;
            let Some(last) = layout.iter().rposition(is_optional) else {
                break;
            };
            layout.remove(last);
        }
        while total_width(layout.iter().map(|(_, width)| *width)) > max_width {
            let widest = layout
                .iter_mut()
                .filter(|column| column.1 > min_width(column));
            let Some(widest) = widest.max_by_key(|column| column.1) else {
                break;
            };
            widest.1 -= 1;
        }
        layout
    }

    fn push_line(&self, text: &mut String, layout: &[(usize, usize)], cells: &[Cell]) {
        let mut line = String::new();
        for (position, &(i, width)) in layout.iter().enumerate() {
            let Some(cell) = cells.get(i) else { continue };
            let value = match self.max_width {
                Some(_) => cut(&cell.text, width),
                None => cell.text.clone(),
            };
            let padding = " ".repeat(width.saturating_sub(value.width()));
            let value = match cell.color {
                Some(color) => self.colors.paint(color, &value),
                None => value,
            };
            if position > 0 {
                line.push_str(GAP);
            }
            if self.columns[i].is_right_aligned {
                line.push_str(&padding);
                line.push_str(&value);
            } else {
                line.push_str(&value);
                line.push_str(&padding);
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn total_width(widths: impl ExactSizeIterator<Item = usize>) -> usize {
    let gaps = widths.len().saturating_sub(1) * GAP.len();
    widths.sum::<usize>() + gaps
}

/// Returns the text, or its beginning and `…` if it is wider than `max_width`.
fn cut(text: &str, max_width: usize) -> String {
    if text.width() <= max_width {
        return text.to_owned();
    }
    let mut result = String::new();
    let mut width = 1;
    for character in text.chars() {
        width += character.width().unwrap_or(0);
        if width > max_width {
            break;
        }
        result.push(character);
    }
    result.push(ELLIPSIS);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::elastic("NAME", 6),
        Column::new("COUNT").right_aligned(),
        Column::elastic("TEXT", 4),
        Column::new("EXTRA").optional(),
    ];

    fn render(max_width: Option<usize>, rows: &[[&str; 4]]) -> String {
        let rows: Vec<Vec<Cell>> = rows
            .iter()
            .map(|row| row.iter().map(|text| Cell::new(text)).collect())
            .collect();
        Table::new(&COLUMNS, Colors::OFF, max_width).render(&rows)
    }

    const ROWS: [[&str; 4]; 2] = [
        ["a-long-name", "1", "some texts", "x"],
        ["b", "1000", "名前名前", "y"],
    ];

    #[test]
    fn a_table_has_aligned_columns() {
        insta::assert_snapshot!(render(None, &ROWS), @r"
        NAME         COUNT  TEXT        EXTRA
        a-long-name      1  some texts  x
        b             1000  名前名前    y
        ");
        assert_eq!(render(Some(80), &ROWS), render(None, &ROWS));
    }

    #[test]
    fn a_narrow_terminal_cuts_elastic_columns_and_leaves_out_optional_columns() {
        insta::assert_snapshot!(render(Some(33), &ROWS), @r"
        NAME       COUNT  TEXT      EXTRA
        a-long-n…      1  some te…  x
        b           1000  名前名前  y
        ");
        insta::assert_snapshot!(render(Some(20), &ROWS), @r"
        NAME    COUNT  TEXT
        a-lon…      1  some…
        b        1000  名前…
        ");
        for width in 19..60 {
            let text = render(Some(width), &ROWS);
            assert!(text.lines().all(|line| line.width() <= width), "{text}");
        }
    }

    #[test]
    fn values_contain_no_control_characters() {
        let text = render(None, &[["a\u{1b}[2Jb", "1", "c\nd", ""]]);
        assert!(
            text.contains("a\\u{1b}[2Jb") && text.contains("c\\u{a}d"),
            "{text}"
        );
    }

    #[test]
    fn later_parts_have_no_header() {
        let mut table = Table::new(&COLUMNS[..1], Colors::OFF, None);
        assert_eq!(table.render(&[vec![Cell::new("a")]]), "NAME\na\n");
        assert_eq!(table.render(&[vec![Cell::new("b")]]), "b\n");
    }
}
