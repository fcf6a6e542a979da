import J2Ci.jDVInterface;
import J2Ci.jDVPSGraphicObject;
import J2Ci.jDVPSGraphicType;
import J2Ci.jDVPSObjectApplicability;
import J2Ci.jDVPSTextObject;
import J2Ci.jDVPSannotationUnit;
import J2Ci.jDVPresentationState;

/**
 * Draws on a film with DICOMscope's own objects, and saves the presentation state as DICOMscope does.
 *
 * Arguments: settings of DICOMscope, film, file to write, creator, label, text (or nothing), and for each graphic its
 * units (PIXEL or DISPLAY), its type (POLYLINE, INTERPOLATED, CIRCLE, ELLIPSE) and its points (x,y,x,y).
 */
public final class DrawState {
    private static final int PIXEL = jDVPSannotationUnit.DVPSA_pixels;
    private static final int DISPLAY = jDVPSannotationUnit.DVPSA_display;

    private DrawState() {
    }

    public static void main(String[] words) {
        System.loadLibrary("jInterface");
        jDVInterface scope = new jDVInterface(words[0]);
        done(scope.loadImage(words[1]), "load the film");
        jDVPresentationState state = scope.getCurrentPState();
        done(state.setPresentationCreatorsName(words[3]), "name the creator");
        done(state.setPresentationLabel(words[4]), "set the label");
        done(state.addGraphicLayer("READER", "What a reader drew"), "add a layer");
        int layer = state.getNumberOfGraphicLayers() - 1;
        for (int number = 6; number < words.length; number += 3) {
            draw(state.addGraphicObject(layer, jDVPSObjectApplicability.DVPSB_currentImage), words, number);
        }
        if (!words[5].isEmpty()) {
            jDVPSTextObject text = state.addTextObject(layer, jDVPSObjectApplicability.DVPSB_currentImage);
            done(text.setText(words[5]), "write the text");
            done(text.setAnchorPoint(5, 5, PIXEL, false), "place the text");
        }
        done(scope.savePState(words[2], true, true), "save the presentation state");
    }

    private static void draw(jDVPSGraphicObject graphic, String[] words, int number) {
        String[] edges = words[number + 2].split(",");
        float[] points = new float[edges.length];
        for (int index = 0; index < edges.length; index++) {
            points[index] = Float.parseFloat(edges[index]);
        }
        int units = words[number].equals("PIXEL") ? PIXEL : DISPLAY;
        done(graphic.setData(points.length / 2, points, units), "set the points");
        done(graphic.setGraphicType(typeOf(words[number + 1])), "set the type");
    }

    private static int typeOf(String name) {
        switch (name) {
            case "POLYLINE":
                return jDVPSGraphicType.DVPST_polyline;
            case "INTERPOLATED":
                return jDVPSGraphicType.DVPST_interpolated;
            case "CIRCLE":
                return jDVPSGraphicType.DVPST_circle;
            case "ELLIPSE":
                return jDVPSGraphicType.DVPST_ellipse;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static void done(int status, String what) {
        if (status != 0) {
            throw new IllegalStateException("DICOMscope does not " + what + ": status " + status);
        }
    }
}
