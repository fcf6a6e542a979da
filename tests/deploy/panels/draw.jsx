// Draws one dashboard on a page: its panels in their places, by the components that Grafana's own panels are made of.
//
// What Grafana's core does between a dashboard's JSON and these components stands here in its shortest form: the
// defaults of the three kinds of panel that the dashboards use, and the text of a panel without data.
import { createRoot } from 'react-dom/client';
import {
  createTheme, dateTime, FieldType, getDisplayProcessor, getDisplayValueAlignmentFactors, getFieldDisplayValues, toDataFrame,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, ThemeContext, TimeSeries, VizRepeater } from '@grafana/ui';

const WIDTH = 1560, CELL = 30, GAP = 8;
const theme = createTheme({ colors: { mode: 'dark' } });
const DRAWN = { drawStyle: 'line', lineInterpolation: 'linear', showPoints: 'auto', spanNulls: false, axisPlacement: 'auto' };

window.drawn = ({ dashboard, answers, from, to }) => {
  document.body.style.cssText = `margin: 0; background: ${theme.colors.background.canvas}; color: ${theme.colors.text.primary};
    font-family: ${theme.typography.fontFamily}; font-size: 14px; width: ${WIDTH + 2 * GAP}px`;
  createRoot(document.getElementById('dashboard')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Dashboard dashboard={dashboard} answers={answers} range={{ from: dateTime(from), to: dateTime(to), raw: { from, to } }} />
    </ThemeContext.Provider>
  );
};

function Dashboard({ dashboard, answers, range }) {
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return <>
    <h2 style={{ margin: `${2 * GAP}px ${GAP}px ${GAP}px`, fontSize: 20, fontWeight: 500 }}>{dashboard.title}</h2>
    <div style={{ position: 'relative', height: bottom * (CELL + GAP), margin: GAP }}>
      {dashboard.panels.map((panel, number) => {
        const { x, y, w, h } = panel.gridPos;
        const width = Math.floor(w / 24 * WIDTH) - GAP, height = h * CELL + (h - 1) * GAP;
        const place = { position: 'absolute', left: x / 24 * WIDTH, top: y * (CELL + GAP), width, height };
        return <div key={number} style={place} className="panel" data-title={panel.title}>
          {panel.type === 'row'
            ? <div style={{ paddingTop: 6, fontWeight: 500 }}>{panel.title}</div>
            : <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
                {(innerWidth, innerHeight) =>
                  <Panel panel={panel} series={answers[number]} range={range} width={innerWidth} height={innerHeight} />}
              </PanelChrome>}
        </div>;
      })}
    </div>
  </>;
}

function Panel({ panel, series, range, width, height }) {
  const isGraph = panel.type === 'timeseries';
  const frames = series.map((one, number) => frame(panel, one, number, isGraph));
  const defaults = panel.fieldConfig.defaults;
  if (isGraph) {
    if (!frames.length)
      return <div className="nothing" style={{ height, display: 'grid', placeItems: 'center', color: theme.colors.text.secondary }}>
        {defaults.noValue ?? 'No data'}
      </div>;
    return <TimeSeries frames={frames} width={width} height={height} timeRange={range} timeZone="utc"
      legend={panel.options.legend} options={panel.options} />;
  }
  if (panel.type === 'bargauge' && frames.length) {
    const greatest = Math.max(...frames.map(({ fields }) => Math.max(...fields[1].values)));
    for (const { fields } of frames) fields[1].config.max ??= greatest;
  }
  const getValues = () => getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: text => text,
    theme, data: frames, sparkline: false, timeZone: 'utc',
  });
  const renderValue = ({ value, width, height, count, orientation, alignmentFactors }) => panel.type === 'stat'
    ? <BigValue value={value.display} width={width} height={height} theme={theme} count={count} alignmentFactors={alignmentFactors}
        colorMode={panel.options.colorMode} graphMode="none" justifyMode={panel.options.justifyMode}
        textMode={panel.options.textMode} />
    : <BarGauge value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex ?? 0)}
        width={width} height={height} theme={theme} orientation={orientation} itemSpacing={GAP} lcdCellWidth={12}
        displayMode={panel.options.displayMode} showUnfilled={panel.options.showUnfilled}
        namePlacement={panel.options.namePlacement} valueDisplayMode={panel.options.valueMode} alignmentFactors={alignmentFactors} />;
  return <VizRepeater getValues={getValues} getAlignmentFactors={getDisplayValueAlignmentFactors} renderValue={renderValue} source={frames} width={width} height={height}
    renderCounter={0} orientation={panel.options.orientation} itemSpacing={GAP} autoGrid minVizHeight={16} />;
}

function frame(panel, { name, times, values }, number, isGraph) {
  const defaults = panel.fieldConfig.defaults;
  const config = {
    ...defaults,
    displayNameFromDS: name,
    color: { mode: isGraph ? 'palette-classic' : 'thresholds' },
    custom: { ...DRAWN, ...defaults.custom },
  };
  for (const { matcher, properties } of panel.fieldConfig.overrides)
    if (matcher.options === name)
      for (const { id, value } of properties) config[id] = value;
  const made = toDataFrame({ name, fields: [
    { name: 'Time', type: FieldType.time, values: times, config: {} },
    { name, type: FieldType.number, values, config },
  ] });
  for (const field of made.fields) {
    field.state = { seriesIndex: number, displayName: field.type === FieldType.number ? name : 'Time' };
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
  }
  made.fields[1].state.seriesIndex = number;
  return made;
}
