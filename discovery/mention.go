package discovery

// mention is a name of a service that workloads name.
type mention struct {
	by      []referrer
	service *entry // whom it leads to, or nil, in the batch asOf
	asOf    int
}

// referrer is a workload that names a service, as its item i.
type referrer struct {
	e *entry
	i int
}

// all returns who names the service; of no mention nobody.
func (m *mention) all() []referrer {
	if m == nil {
		return nil
	}
	return m.by
}

// refer lists e with every service that it names.
func (b *Builder) refer(e *entry) {
	for i := range e.reading.refs {
		ref := &e.reading.refs[i]
		m := b.refs[ref.name]
		if m == nil {
			m = &mention{}
			b.refs[ref.name] = m
		}
		ref.mention, ref.place = m, len(m.by)
		m.by = append(m.by, referrer{e, i})
	}
}

// unrefer undoes refer. The last one takes the place of the one that goes.
func (b *Builder) unrefer(e *entry) {
	for _, ref := range e.reading.refs {
		m := ref.mention
		last := m.by[len(m.by)-1]
		last.e.reading.refs[last.i].place = ref.place
		m.by[ref.place] = last
		m.by[len(m.by)-1] = referrer{}
		if m.by = m.by[:len(m.by)-1]; len(m.by) == 0 {
			delete(b.refs, ref.name)
		}
	}
}

// referred returns the service that ref leads to, or nil, once the services of the
// batch are settled: each name is looked up once in a batch.
func (b *Builder) referred(ref ref) *entry {
	m := ref.mention
	if m.asOf != b.asOf {
		m.service, m.asOf = b.claims.listed(ref.name), b.asOf
	}
	return m.service
}
