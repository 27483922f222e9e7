//! The statistics of the laboratory: medians, percentiles, least squares, Jain's index.

/// The value below which a share `q` (0 to 1) of the values lies, interpolated between neighbors
/// (Hyndman and Fan's type 7); NaN of nothing.
#[must_use]
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = q.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// The middle of the values, the mean of the two middle ones if they are even in number.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The arithmetic mean; NaN of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A straight line through points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Its value at x = 0.
    pub intercept: f64,
    /// Its growth for each unit of x.
    pub slope: f64,
    /// Root of the mean squared distance of the points from it, along y.
    pub residual: f64,
}

fn residual(points: &[(f64, f64)], intercept: f64, slope: f64) -> f64 {
    let squares: Vec<f64> =
        points.iter().map(|(x, y)| (y - intercept - slope * x).powi(2)).collect();
    mean(&squares).sqrt()
}

/// The line of least squares; `None` with fewer than two different x.
#[must_use]
pub fn least_squares(points: &[(f64, f64)]) -> Option<Line> {
    let xs: Vec<f64> = points.iter().map(|point| point.0).collect();
    let ys: Vec<f64> = points.iter().map(|point| point.1).collect();
    let (mx, my) = (mean(&xs), mean(&ys));
    let spread: f64 = xs.iter().map(|x| (x - mx).powi(2)).sum();
    if points.len() < 2 || spread <= 0.0 {
        return None;
    }
    let together: f64 = points.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    let slope = together / spread;
    let intercept = my - slope * mx;
    Some(Line { intercept, slope, residual: residual(points, intercept, slope) })
}

/// The line of least squares whose slope is known; `None` of nothing.
#[must_use]
pub fn with_slope(points: &[(f64, f64)], slope: f64) -> Option<Line> {
    if points.is_empty() {
        return None;
    }
    let rests: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
    let intercept = mean(&rests);
    Some(Line { intercept, slope, residual: residual(points, intercept, slope) })
}

/// Jain's fairness index of the shares of a resource: 1 if all are equal, 1/n if one has it all
/// (Jain, Chiu, Hawe: DEC-TR-301, 1984). NaN of nothing.
#[must_use]
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn medians_and_percentiles() {
        near(median(&[3.0, 1.0, 2.0]), 2.0);
        near(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        let hundred: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        near(quantile(&hundred, 0.99), 99.0);
        near(quantile(&hundred, 0.0), 0.0);
        near(quantile(&hundred, 1.0), 100.0);
        near(quantile(&[7.0], 0.999), 7.0);
    }

    #[test]
    fn lines() {
        let exact: Vec<(f64, f64)> = [0.0, 1.0, 2.0, 4.0, 8.0].map(|d| (d, 0.4 + 2.0 * d)).into();
        let line = least_squares(&exact).unwrap();
        near(line.intercept, 0.4);
        near(line.slope, 2.0);
        near(line.residual, 0.0);
        // By hand: the mean of y is 2, the slope 1.5, and the points are 0.5, −1, 0.5 off.
        let line = least_squares(&[(0.0, 1.0), (1.0, 1.0), (2.0, 4.0)]).unwrap();
        near(line.slope, 1.5);
        near(line.intercept, 0.5);
        near(line.residual, 0.5_f64.sqrt());
        assert_eq!(least_squares(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(least_squares(&[]), None);
        let fixed = with_slope(&[(0.0, 1.0), (1.0, 3.5)], 2.0).unwrap();
        near(fixed.intercept, 1.25);
        near(fixed.residual, 0.25);
        assert_eq!(with_slope(&[], 2.0), None);
    }

    #[test]
    fn fairness() {
        near(jain(&[5.0, 5.0]), 1.0);
        near(jain(&[1.0, 0.0]), 0.5);
        near(jain(&[3.0, 1.0]), 0.8);
        assert!(jain(&[]).is_nan());
    }
}
