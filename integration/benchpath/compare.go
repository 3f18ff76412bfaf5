//go:build linux

package main

// bound is one promise: a figure of ours is at most a multiple of another one.
type bound struct {
	What      string
	Load      string
	Variant   string
	Figure    string
	OfLoad    string // what it is compared with
	OfVariant string
	AtMost    float64 // times that
}

// row is a bound with what was measured.
type row struct {
	bound
	Got, Of spread
	Ratio   float64 // of the medians
	Low     float64 // the smallest ratio of two samples of the same run
	High    float64
	Held    bool
}

// bounds are what the project promises beside stock ztunnel (docs/performance.md).
func bounds() (all []bound) {
	for _, load := range []string{"up1", "up16", "down1", "down16"} {
		all = append(all, besideStock("CPU-s/GiB, both proxies", load, "single", figCPU, 1.15))
	}
	for _, load := range []string{"up1", "up16", "down1", "down16"} {
		all = append(all, besideStock("CPU-s/GiB, three roles", load, "double", figCPU, 0.9))
	}
	all = append(all,
		besideStock("new connection, warm, CPU of all proxies", "conn", "single", figCPU, 0.75),
		besideStock("new connection, warm, CPU of all proxies", "conn", "double", figCPU, 0.3))
	for _, load := range []string{"echo1", "echo64", "rate"} {
		all = append(all,
			besideStock("1 KiB echo, p50", load, "single", figP50, 1),
			besideStock("1 KiB echo, p99", load, "single", figP99, 1.2),
			besideStock("1 KiB echo, p50", load, "double", figP50, 1),
			besideStock("1 KiB echo, p99", load, "double", figP99, 1))
	}
	for _, variant := range []string{"single", "double"} {
		all = append(all,
			besideStock("echo beside bulk, p50", "beside", variant, figP50, 0.2),
			bound{"echo beside bulk, p50, to its p50 alone", "beside", variant, figP50, "alone", variant, 2})
	}
	for _, r := range []string{"client", "server"} {
		all = append(all, besideStock("idle connection, RSS, "+r, "idle", "single", figIdle+"/"+r, 1.05))
	}
	for _, r := range []string{"client", "gateway", "server"} {
		all = append(all, besideStock("idle connection, RSS, "+r, "idle", "double", figIdle+"/"+r, 0.2))
	}
	for _, r := range []string{"client", "server"} {
		all = append(all, besideStock("base RSS of a node proxy, "+r, "idle", "single", figBase+"/"+r, 1))
	}
	return all
}

func besideStock(what, load, variant, figure string, atMost float64) bound {
	return bound{what, load, variant, figure, load, "zt-" + variant, atMost}
}

// compare holds the bounds against what was measured; a bound whose figures were
// not is left out.
func (r *result) compare() (rows []row) {
	for _, b := range bounds() {
		got, ok := r.figure(b.Load, b.Variant, b.Figure)
		of, also := r.figure(b.OfLoad, b.OfVariant, b.Figure)
		if !ok || !also || of.Median == 0 {
			continue
		}
		ratio := got.Median / of.Median
		pairs := spreadOf(r.pairwise(b))
		rows = append(rows, row{b, got, of, ratio, pairs.Min, pairs.Max, ratio <= b.AtMost})
	}
	return rows
}

func (r *result) figure(load, variant, figure string) (spread, bool) {
	c, ok := r.cell(load, variant)
	s, also := c.Figures[figure]
	return s, ok && also
}

// pairwise returns the ratios of samples of the same run.
func (r *result) pairwise(b bound) (ratios []float64) {
	units := map[string]unit{}
	for _, l := range r.Loads {
		units[l.Name] = l.Unit
	}
	for _, s := range r.samplesOf(b.Load, b.Variant) {
		for _, o := range r.samplesOf(b.OfLoad, b.OfVariant) {
			of := o.figures(units[o.Load])[b.Figure]
			if s.Run == o.Run && of != 0 {
				ratios = append(ratios, s.figures(units[s.Load])[b.Figure]/of)
			}
		}
	}
	return ratios
}
